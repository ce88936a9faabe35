"""Optax's own tests of optimizers, with our optimizers in their tables.

The tests are part of the installed wheel. The text of a module is run in two parts:
between them, its tables are replaced by ours, and the names in our tables are made to
be found where it looks for them.
"""

import os
import pathlib
import types
import unittest
import unittest.mock
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import jax
import optax
import optax.contrib

import jorge_optax

Table = Iterable[tuple[Callable[..., Any], dict[str, Any]]]
jorge, from_adamw = jorge_optax.jorge, jorge_optax.from_adamw


def whitening(learning_rate: optax.ScalarOrSchedule):
    return jorge(learning_rate, rule=jorge_optax.Whitening())


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
CONTRIBUTED = (
    (jorge, {"learning_rate": 1e-3, "update_interval": 1}),
    (jorge, {"learning_rate": 1e-3, "tiling": jorge_optax.Tiling(max_dim=1)}),
    (whitening, {"learning_rate": 1e-3}),
    (from_adamw, {"learning_rate": 1e-3}),
    (jorge_direction, UNGRAFTED),
    (adam_at_length_of_sgd, {"learning_rate": 1e-3}),
)
ALIASES = (
    (jorge, {"learning_rate": 1e-3}),
    (whitening, {"learning_rate": 1e-3}),
    (from_adamw, {"learning_rate": 1e-1}),
)


def load(path: str, split_at: str, tables: dict[str, Any]) -> dict[str, Any]:
    """Runs a module of optax's tests with tables of ours, and returns its names."""
    file = pathlib.Path(optax.__path__[0], path)
    start, split, tests = file.read_text().partition(split_at)
    names: dict[str, Any] = {"__name__": f"optax.{file.stem}"}
    # One module asks for eight devices, and its own table is of optimizers that warn.
    with unittest.mock.patch.dict(os.environ), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(start, file, "exec"), names)
    if not split or not tables.keys() <= names.keys():
        raise RuntimeError(f"{file} has changed: {split_at!r} or {[*tables]}.")
    names |= tables
    # As many empty lines as there were lines before: messages then tell true lines.
    exec(compile("\n" * start.count("\n") + split + tests, file, "exec"), names)
    return names


def rows(optimizers: Table, **more: Any) -> Any:
    return tuple(
        {"opt_name": factory.__name__, "opt_kwargs": kwargs, **more}
        for factory, kwargs in optimizers
    )


def found_in(module: Any, optimizers: Table) -> Any:
    """The module, with our factories beside optax's."""
    factories = {factory.__name__: factory for factory, _ in optimizers}
    return types.SimpleNamespace(**(vars(module) | factories))


def contrib_suite(optimizers: Table) -> Any:
    """The contract for contributed optimizers, without wrappers."""
    own = rows(optimizers, wrapper_name=None, wrapper_kwargs=None)
    tables = {
        "_MAIN_OPTIMIZERS_UNDER_TEST": own,
        "_ALL_OPTIMIZERS_UNDER_TEST": own,
        "contrib": found_in(optax.contrib, optimizers),
    }
    path = "contrib/_common_test.py"
    return load(path, "def _get_opt_factory(", tables)["ContribTest"]


def alias_suite(optimizers: Table) -> Any:
    """The tests of `optax.adam` and all others."""
    tables = {
        "_OPTIMIZERS_UNDER_TEST": rows(optimizers),
        "alias": found_in(optax, optimizers),
    }
    return load("_src/alias_test.py", "def _get_opt(", tables)["AliasTest"]


def sharding_suite(optimizers: Table) -> Any:
    """The tests of types that hold shardings; they need eight devices."""
    table = {factory.__name__: factory(**kwargs) for factory, kwargs in optimizers}
    # They compare versions as text, and would be skipped from jax 0.10 on.
    own_jax = types.SimpleNamespace(**vars(jax) | {"__version__": "1"})
    tables = {"OPTIMIZERS": table, "jax": own_jax}
    return load("_src/sharding_test.py", "class ShardingTest", tables)["ShardingTest"]


def run(case: Any, only: str = "") -> tuple[set[str], set[str]]:
    """Runs the tests whose description has this in it.

    Returns:
      The descriptions of all of them, and of those that failed or were skipped.
    """
    tests = [
        test
        for test in unittest.defaultTestLoader.loadTestsFromTestCase(case)
        if only in test.id()
    ]
    result = unittest.TestResult()
    with jax.numpy_rank_promotion("allow"):
        unittest.TestSuite(tests).run(result)
    names = {test.id() for test in tests}
    faults = [*result.failures, *result.errors, *result.skipped]
    failed = [test.id() for test, _ in faults]
    return names, {name for name in names for own in failed if own.startswith(name)}
