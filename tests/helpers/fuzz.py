"""Properties that hold for any tree, option and sequence of gradients.

A property takes a case and raises AssertionError if the case is a fault. Strategies
draw cases. ``tests/package/test_fuzz.py`` runs a few hundred, always the same ones;
``python -m benchmarks.robustness.fuzz`` runs thousands.
"""

import collections
import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import strategies as st

from jorge_optax import BinomialSeries, Numerics, Tiling, Whitening, jorge, lengths
from tests.helpers.trees import QUICK

# Tiles of at most 4 are padded; a column, vectors and scalars have no roots.
TREES: dict[str, dict[str, tuple[int, ...]]] = {
    "a matrix": {"w": (6, 4)},
    "all of these": {"w": (7, 9), "kernel": (2, 1, 3, 5), "column": (9, 1), "b": ()},
}
DTYPES = ("float32", "bfloat16", "float16")
COUNTS: collections.Counter[str] = collections.Counter()


class Setting(NamedTuple):
    """An optimizer, and what is known of its steps."""

    optimizer: optax.GradientTransformationExtraArgs
    base: Any = optax.trace(0.9)  # whose steps are as long, unless None
    largest: float = 3e38  # gradients beyond this may overflow, as the docs say
    dtypes: tuple[str, ...] = DTYPES  # of the parameters


WHITENING, PLAIN = Whitening(), optax.trace(0.0)
NARROW = {"numerics": Numerics("bfloat16", "bfloat16")}
ROUNDED = optax.trace(0.9, accumulator_dtype="bfloat16")
SETTINGS = {
    "default": Setting(jorge(1.0)),
    "series, no momentum": Setting(jorge(1.0, 0.0, update_interval=2), PLAIN),
    "series, bfloat16": Setting(jorge(1.0, **NARROW), ROUNDED),
    "series, damped": Setting(jorge(1.0, rule=BinomialSeries(damping=0.1))),
    "whitening": Setting(jorge(1.0, rule=WHITENING)),
    "whitening, no momentum": Setting(jorge(1.0, 0.0, rule=WHITENING), PLAIN),
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


@functools.cache
def runner(setting: str, tree: str, dtype: str) -> tuple[Any, Any, Any, Any]:
    """Returns compiled updates of an optimizer and its baseline, with first states."""
    optimizer, base = SETTINGS[setting].optimizer, SETTINGS[setting].base or PLAIN
    params = {key: jnp.zeros(shape, dtype) for key, shape in TREES[tree].items()}
    wide = {key: own.astype(jnp.float32) for key, own in params.items()}
    update = jax.jit(optimizer.update, compiler_options=QUICK)
    return update, jax.jit(base.update), optimizer.init(params), base.init(wide)


class Step(NamedTuple):
    """How one gradient of a sequence is made."""

    kind: str
    exponent: int
    seed: int


def gradient(shape: tuple[int, ...], step: Step) -> np.ndarray:
    """Entries of at most ``10**exponent``, in float64."""
    rng = np.random.default_rng(step.seed)
    full = rng.uniform(-1, 1, size=(int(np.prod(shape[:-1])), int(np.prod(shape[-1:]))))
    match step.kind:
        case "rank 1":
            full = np.outer(full[:, 0], full[0])
        case "zero":
            full = np.zeros_like(full)
        case "dead row":
            full[0] = 0
        case "spread":
            full = full * 10.0 ** rng.uniform(-20, 0, size=full.shape)
    return (full * 10.0**step.exponent).reshape(shape)


kinds = st.sampled_from(["normal", "rank 1", "zero", "dead row", "spread"])
steps = st.builds(Step, kinds, st.integers(-38, 38), st.integers(0, 2**16))
sequences = st.lists(steps, min_size=1, max_size=8)


def norm64(x: Any) -> float:
    return float(np.sqrt(np.sum(np.square(np.asarray(x, np.float64)))))


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
        old, (updates, state) = (grads, state), update(grads, state)
        COUNTS["steps"] += 1
        chex.assert_trees_all_equal_shapes_and_dtypes((updates, state), old)
        chex.assert_tree_all_finite((updates, state))
        for key, own in updates.items() if known.base is not None else ():
            assert_as_long(own, expected[key], dtype, tolerance)
            if known.base is PLAIN and dtype == "float32":
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


# Equivariance.

EQUIVARIANT = ("series", "whitening")
SHAPE, LENGTH = (6, 4), 5


@functools.cache
def _trained(rule: str, eps: float) -> Any:
    chosen = BinomialSeries(eps) if rule == "series" else Whitening(early_refreshes=3)
    optimizer = jorge(1.0, rule=chosen, update_interval=2)

    def train(grads):
        def step(state, gradient):
            return optimizer.update(gradient, state)[::-1]

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
    there, back = np.ix_(rows, columns), np.ix_(np.argsort(rows), np.argsort(columns))
    assert_equivariant(rule, seed, lambda x: x[:, *there], lambda x: x[:, *back])


def transposes(seed: int, rule: str = "whitening") -> None:
    """Transposed gradients transpose the steps; the paper's rule promises no such."""
    transpose = functools.partial(np.swapaxes, axis1=1, axis2=2)
    assert_equivariant(rule, seed, transpose, transpose)


# Options: one value of any kind for one option.

values = st.one_of(
    st.floats(),
    st.integers(-3, 2**40),
    st.sampled_from([True, None, "0.1", 1e-300, "sgd", "bfloat16", "float64", "high"]),
    st.sampled_from([Tiling(2), Whitening(), Whitening, lengths.Adam(), "adam"]),
)
FIELDS = {
    jorge: ("momentum", "weight_decay", "update_interval", "grafting", "tiling"),
    BinomialSeries: ("eps", "damping"),
    Whitening: ("beta2", "early_refreshes", "damping"),
    Numerics: ("roots", "momenta", "apply", "refresh"),
}
names = [(taker, name) for taker, fields in FIELDS.items() for name in fields]
options = st.tuples(st.sampled_from(names), values)


def refuses_or_runs(case: tuple[tuple[Any, str], Any]) -> None:
    """An option is refused with its name, or two steps are finite."""
    COUNTS["options"] += 1
    (taker, name), value = case
    own = "numerics" if taker is Numerics else "rule"
    refusal, optimizer = "", jorge(0.1)
    try:
        given = {name: value}
        optimizer = jorge(0.1, **(given if taker is jorge else {own: taker(**given)}))
    except (TypeError, ValueError) as error:
        refusal = str(error)
    if refusal:
        assert name in refusal
        COUNTS["options refused"] += 1
        return
    params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}

    def two_steps(params):
        _, state = optimizer.update(params, optimizer.init(params), params)
        return optimizer.update(params, state, params)

    updates, state = jax.jit(two_steps, compiler_options=QUICK)(params)
    if name != "weight_decay" or value < 1e30:  # beyond, decay itself overflows
        chex.assert_tree_all_finite((updates, state))
