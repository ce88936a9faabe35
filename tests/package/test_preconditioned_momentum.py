"""Rules that precondition the momentum or Nesterov's, against NumPy in float64."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    BinomialSeries,
    Tiling,
    graft,
    jorge,
    scale_by_jorge,
    state_size,
)
from tests.helpers.oracle import JorgeOracle, TileOracle
from tests.helpers.oracle_cases import MAX_DIM

PARAMS = {"kernel": jnp.ones((3, 3, 2, 4)), "dense": jnp.ones((6, 5)), "b": jnp.ones(4)}
BETA1 = 0.9
STEPS = 6
INPUTS = ("momentum", "nesterov")
# shape, lengths of the row cuts and of the column cuts at MAX_DIM
CASES = {"thin": ((12, 3), None, None), "tiles": ((13, 17), (7, 6), (9, 8))}


def gradients(steps, params=PARAMS):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        yield jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), params)


class MomentumTile:
    """Overrides what a tile's oracle refreshes from and preconditions."""

    refreshes_from, preconditions = "momentum", "momentum"

    def inputs(self, g):
        momentum = g + BETA1 * self.m_sgd
        nesterov = g + BETA1 * momentum
        return {"gradient": g, "momentum": momentum, "nesterov": nesterov}

    def update_preconditioners(self, g):
        super().update_preconditioners(self.inputs(g)[self.refreshes_from])

    def grafted(self, g, beta1):
        assert beta1 == BETA1
        inputs = self.inputs(g)
        direction = self.precondition(inputs[self.preconditions])
        self.m_sgd = inputs["momentum"]
        return np.linalg.norm(self.m_sgd) * direction / np.linalg.norm(direction)

    def plain(self, g, beta1):
        assert beta1 == BETA1
        inputs = self.inputs(g)
        self.m_sgd = inputs["momentum"]
        return (1 - BETA1) * self.precondition(inputs[self.preconditions])


class NesterovTile(MomentumTile):
    refreshes_from, preconditions = "gradient", "nesterov"


# What a wrong implementation would do.
class NesterovThroughout(MomentumTile):
    refreshes_from, preconditions = "nesterov", "nesterov"


class MomentumFromGradient(MomentumTile):
    refreshes_from, preconditions = "gradient", "momentum"


def run_oracle(tile, case, grafting):
    shape, row_cuts, column_cuts = CASES[case]
    oracle = JorgeOracle(
        shape,
        row_cuts,
        column_cuts,
        weight_decay=0.01,
        interval=2,
        grafting=grafting == "sgd",
        rule=type("Tile", (tile, TileOracle), {}),
    )
    ones = jnp.ones(shape)
    return [oracle.update(g, ones) for g in gradients(STEPS, ones)]


def run_package(rule, case, grafting):
    optimizer = jorge(
        0.1,
        BETA1,
        0.01,
        rule=rule,
        update_interval=2,
        grafting=grafting,
        tiling=Tiling(MAX_DIM),
        root_dtype="float64",
    )
    params = jnp.ones(CASES[case][0])
    state, update, found = optimizer.init(params), jax.jit(optimizer.update), []
    for g in gradients(STEPS, params):
        updates, state = update(g, state, params)
        found.append(updates)
    return found


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("grafting", ["sgd", None])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("preconditions", INPUTS)
def test_updates_are_those_of_numpy(preconditions, case, grafting):
    rule = BinomialSeries(preconditions=preconditions)
    found = run_package(rule, case, grafting)
    tiles = {
        "momentum": (MomentumTile, MomentumFromGradient, NesterovTile),
        "nesterov": (NesterovTile, NesterovThroughout, MomentumFromGradient),
    }
    ours, *wrong = (run_oracle(t, case, grafting) for t in tiles[preconditions])
    chex.assert_trees_all_close(found, ours, rtol=1e-7, atol=1e-10)
    for other in wrong:
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(found, other, rtol=1e-3)


@pytest.mark.parametrize("tiling", [Tiling(), Tiling(3)])
def test_momentum_is_grafted_jorge_after_a_momentum(tiling):
    options = dict(update_interval=2, tiling=tiling)
    rule = BinomialSeries(preconditions="momentum")
    optimizer = jorge(0.1, 0.9, 0.01, rule=rule, **options)
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


@pytest.mark.parametrize("preconditions", INPUTS)
def test_parameters_without_roots_are_averaged_like_tiles(preconditions):
    """Without grafting: the momentum, or Nesterov's, times 1 - momentum."""
    rule = BinomialSeries(preconditions=preconditions)
    optimizers = {
        "ours": scale_by_jorge(rule=rule, momentum=0.9),
        "momentum": optax.trace(0.9),
        "nesterov": optax.trace(0.9, nesterov=True),
    }
    states = {name: tx.init(PARAMS) for name, tx in optimizers.items()}
    updates = {}
    for grads in gradients(4):
        for name, tx in optimizers.items():
            updates[name], states[name] = tx.update(grads, states[name])
    found = {name: u["b"] for name, u in updates.items()}
    ours, expected = found.pop("ours"), found.pop(preconditions)
    chex.assert_trees_all_close(ours, 0.1 * expected, rtol=1e-5)
    for other in found.values():
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(ours, 0.1 * other, rtol=1e-2)


@pytest.mark.parametrize("grafting", ["sgd", None])
@pytest.mark.parametrize("preconditions", INPUTS)
def test_without_momentum_all_rules_are_the_papers_order(preconditions, grafting):
    def run(momentum, preconditions):
        rule = BinomialSeries(preconditions=preconditions)
        optimizer = jorge(0.1, momentum, rule=rule, grafting=grafting)
        state = optimizer.init(PARAMS)
        for grads in gradients(3):
            updates, state = optimizer.update(grads, state)
        return updates

    expected = run(0.0, "gradient")
    chex.assert_trees_all_close(run(0.0, preconditions), expected, rtol=1e-5)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(run(0.5, preconditions), expected, rtol=1e-2)


@pytest.mark.parametrize("preconditions", INPUTS)
def test_one_momentum_is_kept(preconditions):
    rule = BinomialSeries(preconditions=preconditions)
    matrices = sum(x.size for x in jax.tree.leaves(PARAMS) if x.ndim > 1)
    less = state_size(PARAMS) - state_size(PARAMS, rule=rule)
    assert less == 4 * matrices
    half = state_size(PARAMS, rule=rule, accumulator_dtype="bfloat16")
    everything = sum(x.size for x in jax.tree.leaves(PARAMS))
    assert state_size(PARAMS, rule=rule) - half == 2 * everything
