"""Finite gradients of any scale give finite states, and steps as long as SGD's."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import BinomialSeries, Numerics, Tiling, Whitening, graft, jorge
from tests.helpers.plain import Plain
from tests.helpers.trees import QUICK

SERIES, WHITENING = BinomialSeries(), Whitening()
RULES = {"series": SERIES, "whitening": WHITENING}
# Scales of the gradients of consecutive steps; the last one goes on.
SEQUENCES = {
    "from 1e-30 to 1e9": (1e-30, 1e9),
    "from 1e-36 to 1e9": (1e-36, 1e9),
    "from 1e10 to 1e-30": (1e10, 1e-30),
    "from 1e37 to 1e-36": (1e37, 1e-36),
    "from subnormal to 1e37": (1e-42, 1e37),
    "all the way up": tuple(10.0**k for k in range(-42, 38, 6)),
    "all the way down": tuple(10.0**k for k in range(36, -43, -6)),
    "back and forth": (1e-30, 1e9, 0) * 5,
    "1e-37 without a refresh": (0, 1e-37),  # found by the fuzzer
} | {f"always {scale}": (scale,) for scale in (0, 1e-42, 1e-18, 1, 1e30)}
STEPS, SHAPE = 16, (8, 6)
SMALLEST = float(jnp.finfo(jnp.float32).tiny)
CASES = {
    f"{name}, momentum {momentum}": {"rule": rule, "momentum": momentum}
    for name, rule in RULES.items()
    for momentum in (0.9, 0.0)
} | {
    "series, bfloat16 roots": {"rule": SERIES, "numerics": Numerics("bfloat16")},
    "whitening, low precision": {"rule": WHITENING, "numerics": "reduced"},
    "series, at every step": {"rule": SERIES, "update_interval": 1},
    "whitening, small tiles": {"rule": WHITENING, "tiling": Tiling(4)},
    "whitening, damped": {"rule": Whitening(damping=0.1)},
    "series, damped": {"rule": BinomialSeries(damping=0.1)},
}


def gradients(scales):
    rng = np.random.default_rng(0)
    scales = np.array((*scales, *[scales[-1]] * STEPS)[:STEPS])
    # Entries of at most one, so that SGD's momentum is finite.
    own = scales[:, None, None] * rng.uniform(-1, 1, size=(STEPS, *SHAPE))
    return own.astype(np.float32)


def all_finite(tree):
    return jnp.array([jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]).all()


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def run(optimizer, grads):
    """Returns for all sequences all steps, and whether steps and states were finite."""

    def step(state, gradient):
        update, state = optimizer.update(gradient, state)
        return state, (update, all_finite((update, state)))

    def sequence(grads):
        return jax.lax.scan(step, optimizer.init(grads[0]), grads)[1]

    return jax.lax.map(sequence, grads)


def norms(x):
    return np.sqrt(np.sum(np.square(np.asarray(x, np.float64)), (-1, -2)))


def faults(optimizer, momentum=0.9, momenta=None):
    """Returns sequences with a step that is not finite or not as long as SGD's."""
    grads = np.stack([*map(gradients, SEQUENCES.values())])
    steps, finite = run(optimizer, grads)
    expected = norms(run(optax.trace(momentum, accumulator_dtype=momenta), grads)[0])
    # Numbers below the least normal one may be rounded to zero.
    tolerance = 1e-2 if momenta else 1e-5
    allowed = tolerance * expected + SMALLEST * np.sqrt(np.prod(SHAPE))
    good = np.asarray(finite) & (abs(norms(steps) - expected) <= allowed)
    return {name for name, own in zip(SEQUENCES, good, strict=True) if not own.all()}


@pytest.mark.parametrize("case", CASES)
def test_any_sequence_of_scales_keeps_sgds_length(case):
    momenta = "bfloat16" if CASES[case].get("numerics") == "reduced" else None
    momentum = CASES[case].get("momentum", 0.9)
    assert faults(jorge(1.0, **CASES[case]), momentum, momenta) == set()


def test_without_the_guard_scales_break_the_state():
    """The negative control."""
    found = faults(jorge(1.0, rule=Plain()))
    assert {"from 1e-36 to 1e9", "all the way up"} <= found
    assert "always 1" not in found


def test_a_step_beyond_the_largest_number_is_cut_off():
    """SGD's step is finite, but one entry of its length is not."""
    largest = np.finfo(np.float32).max
    direction = jnp.zeros((4, 4)).at[1, 2].set(-3.0)
    combined = graft(optax.identity(), optax.stateless(lambda *_: direction))
    for entry, expected in ((largest, -largest), (largest / 8, -largest / 2)):
        length = jnp.full((4, 4), entry)
        step, _ = combined.update(length, combined.init(length))
        np.testing.assert_allclose(step, -expected / 3 * direction, rtol=1e-6)


# --- gradients that no root may see --------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_a_bad_gradient_enters_the_momenta_but_not_the_roots(rule):
    """Neither does one of zeros; the other tile goes on. The README has the remedy."""
    optimizer = jorge(0.1, rule=RULES[rule], update_interval=1, tiling=Tiling(6))
    guarded = optax.apply_if_finite(optimizer, 3)
    params = jnp.ones((12, 6))
    good = jnp.asarray(np.random.default_rng(7).normal(size=(3, 12, 6)), jnp.float32)

    @functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
    def three_steps(optimizer, grads):
        _, state = optimizer.update(grads[0], optimizer.init(params), params)
        _, after = optimizer.update(grads[1], state, params)
        return state, after, optimizer.update(grads[2], after, params)

    def roots_changed(state, after):
        old, new = (optax.tree.get(x, "roots").left["6x6"] for x in (state, after))
        chex.assert_tree_all_finite(new)
        return [bool(np.any(old.unit[i] != new.unit[i])) for i in range(2)]

    for bad in (np.nan, -np.inf):
        grads = good.at[1, 2, 1].set(bad)
        state, after, (step, last) = three_steps(optimizer, grads)
        assert roots_changed(state, after) == [False, True]
        assert not np.isfinite(last[0].trace["6x6"][0]).all()
        assert not np.isfinite(step[:6]).all()
        assert np.isfinite(step[6:]).all()
        _, _, (step, last) = three_steps(guarded, grads)
        chex.assert_tree_all_finite((step, last.inner_state))
    for grads, changed in (
        (good.at[1, :6].set(0), [False, True]),
        (good.at[1, :6].set(1e-42), [False, True]),
        (good, [True, True]),
    ):
        assert roots_changed(*three_steps(optimizer, grads)[:2]) == changed
