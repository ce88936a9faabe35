"""Sides of tiles: split and joined, and batches by key."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax import Sides
from jorge_optax._sides import join_sides, map_batches, split_sides


def test_items_with_equal_keys_are_one_batch_and_get_their_own_parts():
    rng = np.random.default_rng(0)
    items = [
        (jnp.asarray(rng.normal(size=(n, m, m))), jnp.arange(float(n)))
        for n, m in ((2, 3), (1, 5), (4, 3))
    ]
    seen = {}

    def function(groups):
        seen.update({key: len(matrices) for key, (matrices, _) in groups.items()})
        return [(2 * m, v + 1) for m, v in groups.values()]

    found = map_batches(function, items, [3, 5, 3])
    assert seen == {3: 6, 5: 1}
    expected = [(2 * matrices, vector + 1) for matrices, vector in items]
    chex.assert_trees_all_equal(found, expected)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(found[2], expected[0])


def test_splitting_scales_and_transposes_and_joining_undoes_the_split():
    rng = np.random.default_rng(1)
    gradients = {
        "3x2": jnp.asarray(100 * rng.normal(size=(4, 3, 2)), jnp.float32),
        "2x2": jnp.asarray(rng.normal(size=(1, 2, 2)), jnp.float32),
    }
    roots = {
        key: Sides(jnp.ones((n, r, r)), jnp.zeros((n, c, c)))
        for key, (n, r, c) in ((k, g.shape) for k, g in gradients.items())
    }
    sides = split_sides(gradients, roots)
    assert [(side.stack, side.name) for side in sides] == [
        (key, name) for key in gradients for name in ("left", "right")
    ]
    for side in sides:
        whole = side.gradient * side.scale[:, None, None]
        whole = whole if side.name == "left" else whole.mT
        chex.assert_trees_all_equal(whole, gradients[side.stack])
        norms = np.sum(np.square(np.asarray(side.gradient)), (1, 2))
        np.testing.assert_allclose(side.trace, norms, rtol=1e-6)
    joined = join_sides(sides, [side.root for side in sides])
    chex.assert_trees_all_equal(joined, roots)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(
            joined, {key: Sides(2 * a, b) for key, (a, b) in roots.items()}
        )
