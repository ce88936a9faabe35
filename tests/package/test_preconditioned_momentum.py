"""jorge(one_momentum=True): SGD's momentum, preconditioned."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    Tiling,
    TrackedStatistics,
    graft,
    jorge,
    scale_by_jorge,
    state_size,
)

PARAMS = {"kernel": jnp.ones((3, 3, 2, 4)), "dense": jnp.ones((6, 5)), "b": jnp.ones(4)}


def gradients(steps):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        yield jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), PARAMS)


@pytest.mark.parametrize("refresh", [None, TrackedStatistics()])
@pytest.mark.parametrize("tiling", [Tiling(), Tiling(3)])
def test_it_is_grafted_jorge_after_a_momentum(refresh, tiling):
    options = dict(update_interval=2, rule=refresh, tiling=tiling)
    optimizer = jorge(0.1, 0.9, 0.01, one_momentum=True, **options)
    by_pieces = optax.chain(
        optax.trace(0.9),
        graft(optax.identity(), scale_by_jorge(**options), tiling=tiling),
        optax.add_decayed_weights(0.01),
        optax.scale_by_learning_rate(0.1),
    )
    usual = jorge(0.1, 0.9, 0.01, **options)
    optimizers = (optimizer, by_pieces, usual)
    states = [tx.init(PARAMS) for tx in optimizers]
    for grads in gradients(5):
        pairs = [
            tx.update(grads, state, PARAMS)
            for tx, state in zip(optimizers, states, strict=True)
        ]
        states = [state for _, state in pairs]
        (ours, _), (pieces, _), (others, _) = pairs
        chex.assert_trees_all_close(ours, pieces, rtol=1e-4, atol=1e-6)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(ours["dense"], others["dense"], rtol=1e-2)
    chex.assert_trees_all_close(ours["b"], others["b"], rtol=1e-5)


def test_steps_are_as_long_as_sgds():
    optimizer, sgd = jorge(0.1, one_momentum=True), optax.sgd(0.1, 0.9)
    state, sgd_state = optimizer.init(PARAMS), sgd.init(PARAMS)
    for grads in gradients(5):
        ours, state = optimizer.update(grads, state)
        theirs, sgd_state = sgd.update(grads, sgd_state)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            norms = jnp.linalg.norm(a.ravel()), jnp.linalg.norm(b.ravel())
            np.testing.assert_allclose(*norms, rtol=1e-4)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(ours["dense"], theirs["dense"], rtol=1e-2)


def test_one_momentum_is_kept():
    matrices = sum(x.size for x in jax.tree.leaves(PARAMS) if x.ndim > 1)
    less = state_size(PARAMS) - state_size(PARAMS, one_momentum=True)
    assert less == 4 * matrices + 4  # and the count of optax.ema
    half = state_size(PARAMS, one_momentum=True, accumulator_dtype="bfloat16")
    everything = sum(x.size for x in jax.tree.leaves(PARAMS))
    assert state_size(PARAMS, one_momentum=True) - half == 2 * everything


@pytest.mark.parametrize("grafting", [None, optax.scale_by_adam()])
def test_other_grafting_is_refused(grafting):
    with pytest.raises(ValueError, match="one_momentum .* Leave one of the two out"):
        jorge(0.1, one_momentum=True, grafting=grafting)
