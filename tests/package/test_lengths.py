"""Lengths of the step: each tile's step has the norm of optax's optimizer there."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import BinomialSeries, Tiling, Whitening, describe, jorge, lengths
from tests.helpers.trees import QUICK, arrays, close, differs, one_update, trainer

SHAPES = {"dense": (6, 5), "b": (4,), "scale": ()}
# Tiles of 3 x 3, of which some are padded by a column.
TILING = Tiling(4)
B1, B2, EPS = 0.8, 0.95, 1e-3
RULES = [BinomialSeries(), Whitening(early_refreshes=0)]


def gradients():
    """Of varying size, so that the decay rates matter."""
    sizes = 10.0 ** jnp.array([0, 1, 2, 0, 1])
    scaled = {k: (5, *shape) for k, shape in SHAPES.items()}
    return {
        key: leaf * sizes.reshape(5, *[1] * (leaf.ndim - 1))
        for key, leaf in arrays(**scaled).items()
    }


def run(tx, factor=1.0):
    """The updates of five steps."""
    grads = jax.tree.map(lambda g: factor * g, gradients())
    return trainer(tx)(arrays(**SHAPES), grads)


def tile_norms(updates):
    dense = np.asarray(updates["dense"], np.float64)
    tiles = [dense[:, i : i + 3, j : j + 3] for i in (0, 3) for j in (0, 3)]
    return np.array([np.linalg.norm(own, axis=(1, 2)) for own in tiles])


@dataclasses.dataclass(frozen=True)
class Signs(lengths.Length):
    """A user's length: that of the signs of the gradients."""

    uses_trace = False

    def transformation(self, momentum, momenta_dtype):
        return optax.scale_by_sign()

    def measure(self, state, tile):
        signs = jnp.sign(tile.gradient)
        return jnp.sqrt(jnp.sum(signs**2)), signs, state


# A length, what optax computes, and another optimizer of optax.
PAIRS = {
    "sgd": (lengths.SGD(), optax.trace(B1), optax.trace(B1, nesterov=True)),
    "adam": (
        lengths.Adam(B2, EPS),
        *(optax.scale_by_adam(B1, b2, EPS) for b2 in (B2, 0.9)),
    ),
    "signs": (Signs(), optax.scale_by_sign(), optax.trace(B1)),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", PAIRS)
def test_the_step_of_each_tile_has_the_norm_of_optax(name, rule):
    length, own, other = PAIRS[name]
    found = run(jorge(1.0, B1, rule=rule, grafting=length, tiling=TILING))
    expected = run(own)
    np.testing.assert_allclose(tile_norms(found), tile_norms(expected), rtol=1e-5)
    norms = tile_norms(found), tile_norms(run(other))
    differs(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2), *norms)
    # Parameters without roots take the very step; the others another direction.
    for key in ("b", "scale"):
        close(found[key], -expected[key])
    differs(close, found["dense"], -expected["dense"])


@pytest.mark.parametrize("kind", [lengths.SGD, lengths.Adam])
def test_a_scale_stretches_the_steps_of_matrices_alone(kind):
    params = arrays(**SHAPES)
    plain = one_update(jorge(0.1, grafting=kind()), params)
    stretched = one_update(jorge(0.1, grafting=kind(scale=3.0)), params)
    close(stretched, {**plain, "dense": 3 * plain["dense"]})


@pytest.mark.parametrize("rule", RULES)
def test_by_shape_each_tile_has_the_size_of_the_matrix_alone(rule):
    shape = lengths.Shape(others=0.3, b2=B2)
    tx = jorge(1.0, B1, rule=rule, grafting=shape, tiling=TILING)
    found = run(tx)
    # A root mean square of one over the root of six rows, of 9 or 6 real entries.
    sizes = np.sqrt(np.array([9, 6, 9, 6]) / 6)
    norms = tile_norms(found) / sizes[:, None]
    np.testing.assert_allclose(norms, np.ones((4, 5)), rtol=1e-5)
    adam = run(optax.scale_by_adam(B1, B2))
    for key in ("b", "scale"):
        close(found[key], -0.3 * adam[key])
        differs(close, found[key], -0.1 * adam[key])
    # Whatever the scale of the loss.
    smaller = run(tx, 2.0**-20)
    close(smaller["dense"], found["dense"])
    differs(close, smaller["dense"], -found["dense"])


# The paper's roots grow at once for small gradients, and shrink slowly for large ones.
IN_RANGE = {BinomialSeries(): (1e-18, 1e-14, 1e12), Whitening(): (1e-14, 1e12, 1e16)}
OUT_OF_RANGE = {BinomialSeries(): (0, 1e20, 1e30), Whitening(): (0, 1e-18, 1e20)}


@pytest.mark.parametrize("rule", IN_RANGE)
def test_by_shape_only_a_momentum_whose_norm_is_in_range_moves_anything(rule):
    tx = jorge(1.0, B1, rule=rule, grafting=lengths.Shape())
    first = arrays(**SHAPES)["dense"]
    update = jax.jit(tx.update, compiler_options=QUICK)

    def step(size):
        return update(first / jnp.max(jnp.abs(first)) * size, tx.init(first))[0]

    for size in IN_RANGE[rule]:
        assert np.sum(np.asarray(step(size), np.float64) * first) < 0
        np.testing.assert_allclose(np.linalg.norm(step(size)), 5**0.5, rtol=1e-5)
    for size in OUT_OF_RANGE[rule]:
        np.testing.assert_array_equal(step(size), 0)


def test_no_more_is_kept_than_is_needed():
    """Numbers of the state for each entry of a matrix, its roots apart."""

    def kept(rule, grafting):
        tx = jorge(0.1, rule=rule, grafting=grafting)
        table = describe(arrays(dense=(16, 16)), tx)
        return (table.leaves[0].state_bytes - 4 * (2 * 256 + 2)) / (4 * 256)

    expected = {None: (1, 1), "sgd": (2, 1), lengths.Adam(): (3, 2)}
    expected |= {lengths.Shape(): (1, 1), Signs(): (1, 1)}
    for grafting, (paper, whitening) in expected.items():
        assert kept(BinomialSeries(), grafting) == paper
        assert kept(Whitening(), grafting) == whitening
