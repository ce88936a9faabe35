"""Optax's own contract for contributed optimizers, with our optimizers in its tables.

The contract, ``optax/contrib/_common_test.py``, is part of the installed wheel. Its
text is run in a module of its own, in two parts: between them, its tables are replaced
by ours, and the names in our tables are made to be found where it looks for them.
"""

import pathlib
import types
from collections.abc import Callable
from typing import Any

import optax
import optax.contrib

import jorge_optax

SPLIT_AT = "def _get_opt_factory("
TABLES = ("_MAIN_OPTIMIZERS_UNDER_TEST", "_ALL_OPTIMIZERS_UNDER_TEST")


jorge = jorge_optax.jorge
from_adamw = jorge_optax.from_adamw


def jorge_at_length_of_adam(learning_rate: optax.ScalarOrSchedule):
    return jorge_optax.jorge(learning_rate, grafting=jorge_optax.lengths.Adam())


def jorge_direction(
    learning_rate: optax.ScalarOrSchedule,
    update_interval: int,
    rule: jorge_optax.Rule,
):
    return optax.chain(
        jorge_optax.scale_by_jorge(update_interval=update_interval, rule=rule),
        optax.scale_by_learning_rate(learning_rate),
    )


def adam_at_length_of_sgd(learning_rate: optax.ScalarOrSchedule):
    return optax.chain(
        jorge_optax.graft(optax.trace(0.9), optax.scale_by_adam()),
        optax.scale_by_learning_rate(learning_rate),
    )


# Near a minimum without noise Algorithm 2 as it stands, without grafting, diverges at
# any constant learning rate (so it does in NumPy, in float64): the length of its steps
# does not shrink with the gradient, and between refreshes the roots are those of a
# smaller gradient. Fresh and damped roots at every step and no momentum hold it.
UNGRAFTED = {
    "learning_rate": 1e-3,
    "update_interval": 1,
    "rule": jorge_optax.BinomialSeries(damping=0.1),
}

OPTIMIZERS = (
    (jorge, {"learning_rate": 1e-3}),
    (jorge, {"learning_rate": 1e-3, "update_interval": 1}),
    (jorge, {"learning_rate": 1e-3, "tiling": jorge_optax.Tiling(max_dim=1)}),
    (jorge, {"momentum": 0.0, "grafting": None, **UNGRAFTED}),
    (from_adamw, {"learning_rate": 1e-3}),
    (jorge_at_length_of_adam, {"learning_rate": 1e-3}),
    (jorge_direction, UNGRAFTED),
    (adam_at_length_of_sgd, {"learning_rate": 1e-3}),
)


def contract(optimizers: tuple[tuple[Callable[..., Any], dict[str, Any]], ...]) -> Any:
    """The contract as a TestCase.

    Args:
      optimizers: factories, and the arguments to call them with.

    Returns:
      The class, its tests parameterized by the optimizers alone.
    """
    path = pathlib.Path(optax.contrib.__path__[0], "_common_test.py")
    tables, split, tests = path.read_text().partition(SPLIT_AT)
    if not split:
        raise RuntimeError(f"{path} has changed: no {SPLIT_AT!r} in it.")
    names: dict[str, Any] = {"__name__": "optax.contrib._common_test"}
    exec(compile(tables, path, "exec"), names)
    for table in TABLES:
        if table not in names:
            raise RuntimeError(f"{path} has changed: no table {table} in it.")
        names[table] = tuple(
            {
                "opt_name": factory.__name__,
                "opt_kwargs": kwargs,
                "wrapper_name": None,
                "wrapper_kwargs": None,
            }
            for factory, kwargs in optimizers
        )
    factories = {factory.__name__: factory for factory, _ in optimizers}
    names["contrib"] = types.SimpleNamespace(**(vars(optax.contrib) | factories))
    # As many empty lines as there were lines before: messages then tell true lines.
    tests = "\n" * tables.count("\n") + split + tests
    exec(compile(tests, path, "exec"), names)
    return names["ContribTest"]
