"""Finite gradients give finite states, and steps as long as SGD's."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import BinomialSeries, Whitening, _guards, graft, jorge, lengths
from tests.helpers.lengths import norm64

RULES = {
    "series": BinomialSeries(),
    "momentum": BinomialSeries(preconditions="momentum"),
    "nesterov": BinomialSeries(preconditions="nesterov"),
    "whitening": Whitening(),
}
# Scales of the gradients of consecutive steps; the last one goes on.
SEQUENCES = {
    "from 1e-30 to 1e9": (1e-30, 1e9),
    "from 1e-37 to 100": (1e-37, 100),
    "from 1e-36 to 1e9": (1e-36, 1e9),
    "from 1e-25 to 1e14": (1e-25, 1e14),
    "from 1 to 1e37": (1, 1e37),
    "from 1e10 to 1e-30": (1e10, 1e-30),
    "from 1e37 to 1e-36": (1e37, 1e-36),
    "all the way up": tuple(10.0**k for k in range(-36, 38, 6)),
    "all the way down": tuple(10.0**k for k in range(36, -38, -6)),
    "with zeros": (0, 1e-30, 0, 1e30),
    "back and forth": (1e-30, 1e9) * 8,
    "1e-37 without a refresh": (0, 1e-37),  # found by the fuzzer
}
STEPS = 16
SMALLEST = float(jnp.finfo(jnp.float32).tiny)


def gradients(scales):
    rng = np.random.default_rng(0)
    scales = (*scales, *[scales[-1]] * STEPS)[:STEPS]
    for scale in scales:
        # Entries of at most one, so that SGD's momentum is finite.
        yield jnp.asarray(scale * rng.uniform(-1, 1, size=(8, 6)), jnp.float32)


def faults(optimizer, momentum):
    """Sequences with a step that is not finite or not as long as SGD's."""
    sgd = optax.trace(momentum)
    update, sgd_update = jax.jit(optimizer.update), jax.jit(sgd.update)
    found = []
    for name, scales in SEQUENCES.items():
        state = optimizer.init(jnp.zeros((8, 6)))
        sgd_state = sgd.init(jnp.zeros((8, 6)))
        for gradient in gradients(scales):
            step, state = update(gradient, state)
            expected, sgd_state = sgd_update(gradient, sgd_state)
            leaves = jax.tree.leaves((step, state))
            finite = all(np.isfinite(np.asarray(leaf)).all() for leaf in leaves)
            error = abs(norm64(step) - norm64(expected))
            # Numbers below the least normal one may be rounded to zero.
            rounding = 1e-5 * norm64(expected) + SMALLEST * np.sqrt(gradient.size)
            if not finite or error > rounding:
                found.append(name)
                break
    return found


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("rule", RULES)
def test_any_sequence_of_scales_keeps_sgds_length(rule, momentum):
    assert faults(jorge(1.0, momentum, rule=RULES[rule]), momentum) == []


def test_without_the_guard_scales_break_the_state(monkeypatch):
    """The negative control."""
    monkeypatch.setattr(_guards, "keep_descent", lambda roots, matrix, made: made)
    found = faults(jorge(1.0), 0.9)
    assert {"from 1e-36 to 1e9", "from 1 to 1e37"} <= set(found)


@pytest.mark.parametrize("rule", RULES)
def test_adams_length_is_finite_within_adams_range(rule):
    """Adam's second moment overflows beyond 1e19, as optax.scale_by_adam's does."""
    optimizer = jorge(1.0, rule=RULES[rule], grafting=lengths.Adam(eps=1e-30))
    update = jax.jit(optimizer.update)
    for scales in ((1e-15, 1e9), (1e-10, 1e18), (1e18, 1e-15)):
        state = optimizer.init(jnp.zeros((8, 6)))
        for gradient in gradients(scales):
            step, state = update(gradient, state)
            chex.assert_tree_all_finite((step, state))
            assert norm64(step) > 0
    step, state = update(jnp.full((8, 6), 1e30), state)
    chex.assert_tree_all_finite(step)
    assert not np.isfinite(
        np.concatenate([*map(np.ravel, jax.tree.leaves(state))])
    ).all()


def test_a_step_beyond_the_largest_number_is_cut_off():
    """SGD's step is finite, but one entry of its length is not."""
    largest = float(jnp.finfo(jnp.float32).max)
    length, direction = jnp.full((4, 4), largest), jnp.zeros((4, 4)).at[1, 2].set(-3.0)
    combined = graft(optax.identity(), optax.stateless(lambda *_: direction))
    step, _ = combined.update(length, combined.init(length))
    chex.assert_trees_all_equal(step, jnp.zeros((4, 4)).at[1, 2].set(-largest))
    step, _ = combined.update(length / 8, combined.init(length))
    assert abs(float(step[1, 2]) / (-largest / 2) - 1) < 1e-6


# --- NaN -----------------------------------------------------------------------------


def poisoned(optimizer):
    """The update and the state after one NaN among good gradients."""
    params = jnp.ones((8, 6))
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    good = list(gradients((1,)))
    _, state = update(good[0], state, params)
    _, state = update(good[1].at[2, 1].set(jnp.nan), state, params)
    return update(good[2], state, params)


@pytest.mark.parametrize("rule", RULES)
def test_a_nan_enters_the_momenta_but_not_the_roots(rule):
    """What the README says, and its remedy."""
    optimizer = jorge(0.1, update_interval=1, rule=RULES[rule])
    step, state = poisoned(optimizer)
    kept = [optax.tree.get(state, name) for name in ("roots", "statistics")]
    chex.assert_tree_all_finite(kept)
    assert not np.isfinite(optax.tree.get(state, "momentum")["8x6"]).all()
    assert not np.isfinite(step).all()
    skips = optax.apply_if_finite(optimizer, 3)
    step, state = poisoned(skips)
    chex.assert_tree_all_finite((step, state.inner_state))
