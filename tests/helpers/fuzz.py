"""Properties that hold for any tree, option and sequence of gradients.

A property takes a case and raises AssertionError if the case is a fault. Strategies
draw cases. ``tests/package/test_fuzz.py`` runs a few hundred, always the same ones;
``python -m benchmarks.robustness.fuzz`` runs thousands. Compiling an update takes a
second, running it less than a millisecond: cases share a few optimizers and trees.
"""

import collections
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import strategies as st

from jorge_optax import (
    BinomialSeries,
    Numerics,
    Tiling,
    Whitening,
    graft,
    jorge,
    lengths,
    scale_by_jorge,
)

# Tiles of at most 4 are padded; a column and vectors have no roots.
TREES: dict[str, dict[str, tuple[int, ...]]] = {
    "a matrix": {"w": (6, 4)},
    "some": {"w": (6, 4), "kernel": (2, 2, 3, 5), "b": (5,), "scale": ()},
    "all of these": {
        "w": (7, 9),
        "u": (6, 4),
        "v": (2, 2),
        "column": (9, 1),
        "b": (5,),
    },
}
DTYPES = ("float32", "bfloat16", "float16")


class Setting(NamedTuple):
    """An optimizer, and what is known of its steps."""

    optimizer: optax.GradientTransformationExtraArgs
    base: Any = optax.trace(0.9)  # whose steps are as long, unless None
    descends: bool = False  # each step, since it has no momentum
    largest: float = 3e38  # gradients beyond this may overflow, as the docs say
    dtypes: tuple[str, ...] = DTYPES  # of the parameters


WHITENING, PLAIN, ADAM = Whitening(), optax.trace(0.0), optax.scale_by_adam()
NARROW = {"numerics": Numerics("bfloat16", "bfloat16")}
ROUNDED = optax.trace(0.9, accumulator_dtype="bfloat16")
SETTINGS = {
    "default": Setting(jorge(1.0)),
    "series, no momentum": Setting(jorge(1.0, 0.0, update_interval=2), PLAIN, True),
    "series, bfloat16": Setting(jorge(1.0, **NARROW), ROUNDED),
    "series, interval 1": Setting(jorge(1.0, update_interval=1)),
    "series, damped": Setting(jorge(1.0, rule=BinomialSeries(damping=0.1))),
    "whitening": Setting(jorge(1.0, rule=WHITENING)),
    "whitening, no momentum": Setting(jorge(1.0, 0.0, rule=WHITENING), PLAIN, True),
    "whitening, bfloat16": Setting(jorge(1.0, rule=WHITENING, **NARROW), ROUNDED),
    "tiles of at most 4": Setting(jorge(1.0, tiling=Tiling(4), update_interval=3)),
    # Roots start at 31.6: in float16, steps of 1000 times the gradient overflow.
    "ungrafted": Setting(jorge(1.0, grafting=None), None, dtypes=DTYPES[:2]),
} | {
    f"{name}, {length}": Setting(
        jorge(1.0, rule=rule, grafting=length), None, largest=1e18
    )
    for name, rule in {"series": None, "whitening": WHITENING}.items()
    for length in (lengths.Adam(), lengths.Shape())
}
SETTINGS["whitening, optax's Adam"] = Setting(
    optax.chain(
        graft(ADAM, scale_by_jorge(rule=WHITENING, momentum=0.9)), optax.scale(-1.0)
    ),
    ADAM,
    largest=1e18,
    dtypes=DTYPES[:1],
)
# Quick to compile rather than quick to run.
QUICK = {"xla_backend_optimization_level": 0}
COUNTS: collections.Counter[str] = collections.Counter()


@functools.cache
def runner(setting: str, tree: str, dtype: str) -> tuple[Any, Any, Any, Any]:
    """Returns compiled updates of an optimizer and its baseline, with first states."""
    optimizer, base = SETTINGS[setting].optimizer, SETTINGS[setting].base or PLAIN
    params = {key: jnp.zeros(shape, dtype) for key, shape in TREES[tree].items()}
    wide = {key: own.astype(jnp.float32) for key, own in params.items()}
    first, second = optimizer.init(params), base.init(wide)
    update = jax.jit(optimizer.update, compiler_options=QUICK)
    return update, jax.jit(base.update), first, second


# --- gradients -----------------------------------------------------------------------

KINDS = ("normal", "rank 1", "zero", "dead row", "one entry", "spread", "same")


class Step(NamedTuple):
    """How one gradient of a sequence is made."""

    kind: str
    exponent: int
    seed: int


def gradient(shape: tuple[int, ...], step: Step) -> np.ndarray:
    """Entries of at most ``10**exponent``, in float64."""
    rng = np.random.default_rng(0 if step.kind == "same" else step.seed)
    rows, columns = int(np.prod(shape[:-1])), int(np.prod(shape[-1:]))
    full = rng.uniform(-1, 1, size=(rows, columns))
    match step.kind:
        case "rank 1":
            full = np.outer(full[:, 0], full[0])
        case "zero":
            full = np.zeros_like(full)
        case "dead row":
            full[0] = 0
        case "one entry":
            full = np.where(np.arange(full.size).reshape(full.shape) == 0, full, 0)
        case "spread":
            full = full * 10.0 ** rng.uniform(-20, 0, size=full.shape)
    return (full * 10.0**step.exponent).reshape(shape)


steps = st.builds(
    Step, st.sampled_from(KINDS), st.integers(-38, 38), st.integers(0, 2**16)
)
# Sequences of one scale that jump now and then, and those that jump always.
sequences = st.one_of(
    st.lists(steps, min_size=1, max_size=8),
    st.builds(
        lambda some, exponent: [s._replace(exponent=exponent) for s in some],
        st.lists(steps, min_size=2, max_size=8),
        st.integers(-30, 30),
    ),
)


def norm64(x: Any) -> float:
    return float(np.sqrt(np.sum(np.square(np.asarray(x, np.float64)))))


# --- finite in, finite out -----------------------------------------------------------


def survives(setting: str, tree: str, dtype: str, sequence: list[Step]) -> None:
    """States and steps are finite and as long as the baseline's, of the same dtypes."""
    known = SETTINGS[setting]
    update, base_update, state, base_state = runner(setting, tree, dtype)
    largest = min(known.largest, float(jnp.finfo(dtype).max))
    # Rounded: momenta in bfloat16, steps in the dtype of the parameters.
    tolerance = 3e-2 if dtype != "float32" or known.base is ROUNDED else 1e-4
    COUNTS["sequences"] += 1
    for step in sequence:
        grads = {
            key: jnp.asarray(np.clip(gradient(shape, step), -largest, largest), dtype)
            for key, shape in TREES[tree].items()
        }
        wide = {key: own.astype(jnp.float32) for key, own in grads.items()}
        expected, base_state = base_update(wide, base_state)
        if not all(norm64(own) <= largest / 4 for own in expected.values()):
            return  # its own steps leave the range of the dtype
        updates, new = update(grads, state)
        COUNTS["steps"] += 1
        leaves = (jax.tree.leaves(pair) for pair in ((grads, state), (updates, new)))
        for old, leaf in zip(*leaves, strict=True):
            assert (leaf.dtype, leaf.shape) == (old.dtype, old.shape)
            assert np.isfinite(np.asarray(leaf, np.float64)).all(), step
        state = new
        for key, own in updates.items():
            if known.base is not None:
                assert_as_long(own, expected[key], dtype, tolerance)
            if known.descends and dtype == "float32":
                assert_descends(own, grads[key])


def assert_as_long(update: Any, expected: Any, dtype: str, tolerance: float) -> None:
    """Entries below the least normal number may be rounded to zero."""
    least = float(jnp.finfo(dtype).tiny) * np.sqrt(update.size)
    error = abs(norm64(update) - norm64(expected))
    assert error <= tolerance * norm64(expected) + least, (update, expected)


def assert_descends(update: Any, grad: Any) -> None:
    """The step, of which the sign is flipped, does not oppose the gradient."""
    scales = norm64(update), norm64(grad)
    if min(scales) >= 1e-36:  # else rounded to zero
        unit, along = np.float64(update) / scales[0], np.float64(grad) / scales[1]
        assert -np.sum(unit * along) > -1e-6, (update, grad)


# --- equivariance --------------------------------------------------------------------

EQUIVARIANT = ("series", "whitening")
SHAPE, LENGTH = (6, 4), 5


@functools.cache
def _trained(rule: str, eps: float) -> Any:
    chosen = BinomialSeries(eps) if rule == "series" else Whitening(early_refreshes=3)
    optimizer = jorge(1.0, rule=chosen, update_interval=2)

    def step(state, gradient):
        update, state = optimizer.update(gradient, state)
        return state, update

    def train(grads):
        return jax.lax.scan(step, optimizer.init(grads[0]), grads)[1]

    return jax.jit(train, compiler_options=QUICK)


def assert_equivariant(rule: str, seed: int, change: Any, back: Any, eps=1e-6) -> None:
    """Changed gradients make steps that, changed back, are those of the others."""
    COUNTS["equivariances"] += 1
    grads = np.random.default_rng(seed).normal(size=(LENGTH, *SHAPE))
    grads = grads.astype(np.float32)
    found = back(np.float64(_trained(rule, eps)(change(grads))))
    expected = np.float64(_trained(rule, 1e-6)(grads))
    assert norm64(found - expected) < 1e-4 * norm64(expected)


def scales(rule: str, power: int, seed: int) -> None:
    """Gradients times ``2**power``, and eps times its square, scale the steps."""
    # The series starts as eps says; whitening has no scale of its own.
    eps = 1e-6 * 4.0**power if rule == "series" else 1e-6
    factor = np.float32(2.0**power)
    assert_equivariant(rule, seed, lambda x: x * factor, lambda x: x / factor, eps)


def permutes(rule: str, seed: int) -> None:
    """Permuted rows and columns of the gradients permute those of the steps."""
    rng = np.random.default_rng(seed)
    rows, columns = (rng.permutation(side) for side in SHAPE)
    assert_equivariant(
        rule,
        seed,
        lambda x: x[:, rows][:, :, columns],
        lambda x: x[:, np.argsort(rows)][:, :, np.argsort(columns)],
    )


def transposes(seed: int, rule: str = "whitening") -> None:
    """Transposed gradients transpose the steps; the paper's rule promises no such."""
    assert_equivariant(
        rule, seed, lambda x: x.swapaxes(1, 2), lambda x: x.swapaxes(1, 2)
    )


# --- options -------------------------------------------------------------------------

numbers = st.one_of(
    st.floats(),
    st.floats(0, 1, exclude_max=True),
    st.integers(-3, 2**40),
    st.sampled_from([True, None, "0.1", 1e-300, 1e38, 0.9, 1, 5]),
)
roots = ["float32", "bfloat16", "float16", "float64", "int8", "no dtype", None]
precisions = ["highest", "high", "default", "low", None]
# Options by what takes them.
VALUES: dict[Any, dict[str, st.SearchStrategy]] = {
    jorge: dict.fromkeys(("momentum", "weight_decay", "update_interval"), numbers)
    | {
        "grafting": st.sampled_from(["sgd", None, "adam", 3, lengths.Adam]),
        "tiling": st.sampled_from([None, Tiling(1), Tiling(2), 3]),
        "rule": st.sampled_from([None, Whitening(), Whitening, "paper"]),
    },
    BinomialSeries: dict.fromkeys(("eps", "damping"), numbers),
    Whitening: dict.fromkeys(("beta2", "early_refreshes", "damping"), numbers),
    Numerics: {"roots": st.sampled_from(roots), "momenta": st.sampled_from(roots)}
    | dict.fromkeys(("apply", "refresh"), st.sampled_from(precisions)),
}
NAMES = {Numerics: "numerics", BinomialSeries: "rule", Whitening: "rule"}
# Two options at most: with more, nearly all sets would be refused.
options = st.sampled_from([*VALUES]).flatmap(
    lambda taker: st.tuples(
        st.just(taker),
        st.lists(st.sampled_from([*VALUES[taker]]), max_size=2, unique=True).flatmap(
            lambda names: st.fixed_dictionaries({x: VALUES[taker][x] for x in names})
        ),
    )
)


def refuses_or_runs(case: tuple[Any, dict[str, Any]]) -> None:
    """Options are refused with their name, or two steps are finite."""
    COUNTS["options"] += 1
    taker, given = case
    refusal = ""
    try:
        options = given if taker is jorge else {NAMES[taker]: taker(**given)}
        optimizer = jorge(0.1, **options)
    except (TypeError, ValueError) as error:
        refusal = str(error)
        optimizer = None
    if optimizer is None:
        assert any(name in refusal for name in given), refusal
        COUNTS["options refused"] += 1
        return
    params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}

    def two_steps(params):
        _, state = optimizer.update(params, optimizer.init(params), params)
        return optimizer.update(params, state, params)

    updates, state = jax.jit(two_steps, compiler_options=QUICK)(params)
    if float(given.get("weight_decay", 0.0)) < 1e30:  # beyond, decay itself overflows
        for leaf in jax.tree.leaves((updates, state)):
            assert np.isfinite(np.asarray(leaf, np.float64)).all(), given
