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

from jorge_optax import BinomialSeries, Tiling, Whitening, jorge, lengths

TREES = {
    "a matrix": {"w": (6, 4)},
    "all kinds": {"w": (6, 4), "kernel": (2, 2, 3, 5), "b": (5,), "scale": ()},
    "tiles of two sizes": {"w": (7, 9), "v": (4, 4)},
    "a column": {"w": (9, 1), "v": (2, 2)},
}
TREES["all of these"] = {
    f"{name}/{key}": shape
    for name, tree in TREES.items()
    for key, shape in tree.items()
}
DTYPES = ("float32", "bfloat16", "float16")


class Setting(NamedTuple):
    """An optimizer, and what is known of its steps."""

    options: dict[str, Any]
    has_sgds_length: bool = True  # or that of the transformation it is grafted to
    descends: bool = False  # each step, since it has no momentum
    largest: float = 3e38  # gradients beyond this may overflow, as the docs say
    dtypes: tuple[str, ...] = DTYPES  # of the parameters


def _settings() -> dict[str, Setting]:
    whitening = Whitening()
    momentum = BinomialSeries(preconditions="momentum")
    nesterov = BinomialSeries(preconditions="nesterov")
    narrow = {"root_dtype": "bfloat16", "accumulator_dtype": "bfloat16"}
    adam = {"grafting": lengths.Adam()}
    transformation = {"grafting": optax.scale_by_adam()}
    return {
        "default": Setting({}),
        "series, no momentum": Setting(
            {"momentum": 0.0, "update_interval": 2}, descends=True
        ),
        "whitening": Setting({"rule": whitening}),
        "whitening, no momentum": Setting(
            {"rule": whitening, "momentum": 0.0}, descends=True
        ),
        "one momentum, bfloat16": Setting({"rule": momentum, **narrow}),
        "nesterov, interval 1": Setting({"rule": nesterov, "update_interval": 1}),
        "damping": Setting({"damping": 0.1, "update_interval": 1}),
        "series, Adam's length": Setting(adam, has_sgds_length=False, largest=1e18),
        "whitening, Adam's length": Setting(
            {"rule": whitening, **adam}, has_sgds_length=False, largest=1e18
        ),
        "whitening, bfloat16": Setting({"rule": whitening, **narrow}),
        "whitening, steps by shape": Setting(
            {"rule": whitening, "grafting": lengths.Shape()},
            has_sgds_length=False,
            largest=1e18,
        ),
        # Roots start at 31.6: in float16, steps of 1000 times the gradient overflow.
        "ungrafted": Setting(
            {"grafting": None}, has_sgds_length=False, dtypes=DTYPES[:2]
        ),
        "tiles of at most 4": Setting({"tiling": Tiling(4), "update_interval": 3}),
        "bfloat16 roots": Setting(
            {"root_dtype": "bfloat16", "update_interval": 1, "momentum": 0.5}
        ),
        "series, optax's Adam": Setting(transformation, largest=1e18),
        "whitening, optax's Adam": Setting(
            {"rule": whitening, **transformation}, largest=1e18
        ),
    }


SETTINGS = _settings()
# Quick to compile rather than quick to run.
QUICK = {"xla_backend_optimization_level": 0}
COUNTS: collections.Counter[str] = collections.Counter()


class Runner(NamedTuple):
    """Compiled updates of an optimizer and of its baseline, and where both start."""

    update: Any
    state: Any
    base_update: Any
    base_state: Any
    params: Any


@functools.cache
def runner(setting: str, tree: str, dtype: str) -> Runner:
    """Compiled once for each optimizer and tree."""
    options = SETTINGS[setting].options
    optimizer = jorge(1.0, **options)
    # With the same rounding of momenta, as terms that cancel show it.
    rounded = options.get("accumulator_dtype")
    base = optax.trace(options.get("momentum", 0.9), accumulator_dtype=rounded)
    if isinstance(options.get("grafting"), optax.GradientTransformation):
        base = options["grafting"]
    shapes = TREES[tree]
    params = {key: jnp.zeros(shape, dtype) for key, shape in shapes.items()}
    wide = {key: jnp.zeros(shape) for key, shape in shapes.items()}
    return Runner(
        jax.jit(optimizer.update, compiler_options=QUICK),
        optimizer.init(params),
        jax.jit(base.update, compiler_options=QUICK),
        base.init(wide),
        params,
    )


# --- gradients -----------------------------------------------------------------------

KINDS = ("normal", "rank 1", "zero", "dead row", "one entry", "spread", "same")


class Step(NamedTuple):
    """How one gradient of a sequence is made."""

    kind: str
    exponent: int
    seed: int


def gradient(shape: tuple[int, ...], step: Step) -> np.ndarray:
    """Entries of at most ``10**exponent``, in float64."""
    rng = np.random.default_rng(step.seed)
    rows, columns = int(np.prod(shape[:-1])), int(np.prod(shape[-1:]))
    if step.kind == "same":
        rng = np.random.default_rng(0)
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
    known, run = SETTINGS[setting], runner(setting, tree, dtype)
    largest = min(known.largest, float(jnp.finfo(dtype).max))
    state, base_state = run.state, run.base_state
    # Rounded: momenta in bfloat16, steps in the dtype of the parameters.
    narrow = dtype != "float32" or "accumulator_dtype" in known.options
    tolerance = 3e-2 if narrow else 1e-4
    COUNTS["sequences"] += 1
    for step in sequence:
        grads = {
            key: jnp.asarray(np.clip(gradient(shape, step), -largest, largest), dtype)
            for key, shape in TREES[tree].items()
        }
        wide = {key: g.astype(jnp.float32) for key, g in grads.items()}
        expected, base_state = run.base_update(wide, base_state)
        if not all(norm64(s) <= largest / 4 for s in expected.values()):
            return  # its own steps leave the range of the dtype
        updates, new = run.update(grads, state)
        COUNTS["steps"] += 1
        for old, leaf in zip(
            jax.tree.leaves((grads, state)),
            jax.tree.leaves((updates, new)),
            strict=True,
        ):
            assert (leaf.dtype, leaf.shape) == (old.dtype, old.shape)
            assert np.isfinite(np.asarray(leaf, np.float64)).all(), step
        state = new
        for key, update in updates.items():
            if known.has_sgds_length:
                _assert_as_long(update, expected[key], dtype, tolerance)
            if known.descends and dtype == "float32":
                _assert_descends(update, grads[key])


def _assert_as_long(update: Any, expected: Any, dtype: str, tolerance: float) -> None:
    # Entries below the least normal number may be rounded to zero.
    least = float(jnp.finfo(dtype).tiny) * np.sqrt(update.size)
    error = abs(norm64(update) - norm64(expected))
    assert error <= tolerance * norm64(expected) + least, (update, expected)


def _assert_descends(update: Any, grad: Any) -> None:
    """The step, of which the sign is flipped, does not oppose the gradient."""
    scales = [norm64(x) for x in (update, grad)]
    if min(scales) < 1e-36:
        return  # rounded to zero
    units = [
        np.asarray(x, np.float64) / s
        for x, s in zip((update, grad), scales, strict=True)
    ]
    assert -np.sum(units[0] * units[1]) > -1e-6, (update, grad)


# --- equivariance --------------------------------------------------------------------

EQUIVARIANT = {"series": BinomialSeries(), "whitening": Whitening(early_refreshes=3)}
SHAPE, LENGTH = (6, 4), 5


@functools.cache
def _trained(rule: str, shape: tuple[int, int], eps: float = 1e-6) -> Any:
    optimizer = jorge(1.0, rule=EQUIVARIANT[rule], update_interval=2, eps=eps)

    def step(state, gradient):
        update, state = optimizer.update(gradient, state)
        return state, update

    return jax.jit(lambda grads: jax.lax.scan(step, optimizer.init(grads[0]), grads)[1])


def _sequence(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(LENGTH, *SHAPE)).astype(np.float32)


def _updates(rule: str, grads: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    return np.asarray(_trained(rule, grads.shape[1:], eps)(grads), np.float64)


def _assert_equal(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    error = norm64(found - expected) / norm64(expected)
    assert error < tolerance, error


def scales(rule: str, power: int, seed: int) -> None:
    """Gradients times ``2**power``, and eps times its square, scale the steps."""
    COUNTS["equivariances"] += 1
    grads = _sequence(seed)
    # The series starts as eps says; whitening has no scale of its own.
    eps = 1e-6 * 4.0**power if rule == "series" else 1e-6
    found = _updates(rule, grads * np.float32(2.0**power), eps)
    _assert_equal(found / 2.0**power, _updates(rule, grads), 1e-4)


def permutes(rule: str, seed: int) -> None:
    """Permuted rows and columns of the gradients permute those of the steps."""
    COUNTS["equivariances"] += 1
    rng = np.random.default_rng(seed)
    rows, columns = (rng.permutation(side) for side in SHAPE)
    grads = _sequence(seed)
    found = _updates(rule, grads[:, rows][:, :, columns])
    _assert_equal(found, _updates(rule, grads)[:, rows][:, :, columns], 1e-4)


def transposes(seed: int, rule: str = "whitening") -> None:
    """Transposed gradients transpose the steps; the paper's rule promises no such."""
    COUNTS["equivariances"] += 1
    grads = _sequence(seed)
    found = _updates(rule, np.ascontiguousarray(grads.swapaxes(1, 2)))
    _assert_equal(found.swapaxes(1, 2), _updates(rule, grads), 1e-4)


# --- options -------------------------------------------------------------------------

numbers = st.one_of(
    st.floats(),
    st.floats(0, 1, exclude_max=True),
    st.integers(-3, 2**40),
    st.sampled_from([True, None, "0.1", 1e-300, 1e38, 0.9, 1, 5]),
)
VALUES: dict[str, st.SearchStrategy] = {
    "momentum": numbers,
    "weight_decay": numbers,
    "eps": numbers,
    "damping": numbers,
    "update_interval": numbers,
    "root_dtype": st.sampled_from(
        ["float32", "bfloat16", "float16", "float64", "int8", "no dtype", None]
    ),
    "accumulator_dtype": st.sampled_from(["bfloat16", "float64", "bool", None]),
    "grafting": st.sampled_from(["sgd", None, "adam", 3, lengths.Adam]),
    "precision": st.sampled_from(["highest", "default", "low", None]),
    "refresh_precision": st.sampled_from(["highest", "high", "low", None]),
    "tiling": st.sampled_from([None, Tiling(1), Tiling(2), 3]),
    "rule": st.sampled_from([None, Whitening(), Whitening, "paper"]),
}
# Two options at most: with more, nearly all sets would be refused.
options = st.lists(st.sampled_from([*VALUES]), max_size=2, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: VALUES[name] for name in names})
)


def refuses_or_runs(given: dict[str, Any]) -> None:
    """Options are refused with their name, or two steps are finite."""
    COUNTS["options"] += 1
    text = ""
    try:
        optimizer = jorge(0.1, **given)
    except (TypeError, ValueError) as error:
        text = str(error)
        optimizer = None
    if optimizer is None:
        assert any(name in text for name in given), text
        COUNTS["options refused"] += 1
        return
    params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}

    def two_steps(params):
        _, state = optimizer.update(params, optimizer.init(params), params)
        return optimizer.update(params, state, params)

    updates, state = jax.jit(two_steps, compiler_options=QUICK)(params)
    decay = float(given.get("weight_decay", 0.0))
    if decay < 1e30:  # beyond, decay itself overflows
        for leaf in jax.tree.leaves((updates, state)):
            assert np.isfinite(np.asarray(leaf, np.float64)).all(), given
