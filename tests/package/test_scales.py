"""Scales of many batches at once, against those of each matrix alone."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax._roots import Side, refresh_root, refresh_root_thin, refresh_roots
from jorge_optax._numerics import split_scale, split_scales, together


def batches():
    rng = np.random.default_rng(0)
    for n, rows, columns, size in ((2, 3, 4, 1.0), (1, 5, 2, 1e-30), (4, 2, 2, 1e30)):
        yield jnp.asarray(size * rng.normal(size=(n, rows, columns)), jnp.float32)


def test_together_is_the_function_of_each_batch():
    def function(x, y):
        return x + 2 * y, x * y, x > y

    arguments = [(jnp.arange(n, dtype=jnp.float32), jnp.ones(n)) for n in (3, 1, 4)]
    found = together(function, arguments)
    expected = [function(*own) for own in arguments]
    chex.assert_trees_all_equal(found, expected)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(found[1:], expected[:-1])


def test_scales_of_many_are_those_of_each():
    for batch, (units, scales) in zip(
        batches(), split_scales([*batches()]), strict=True
    ):
        expected = jax.vmap(split_scale)(batch)
        chex.assert_trees_all_equal((units, scales), expected)
        chex.assert_trees_all_equal(units * scales[:, None, None], batch)
        with pytest.raises(AssertionError):
            chex.assert_trees_all_equal(units * (2 * scales[:, None, None]), batch)


def test_roots_of_many_batches_are_those_of_each_matrix():
    rng = np.random.default_rng(1)

    def side(n, m, columns):
        root = jnp.eye(m)[None] + 0.1 * jnp.asarray(
            rng.normal(size=(n, m, m)), jnp.float32
        )
        gradient = jnp.asarray(rng.normal(size=(n, m, columns)), jnp.float32)
        trace = jnp.sum(jnp.square(gradient), (1, 2))
        return Side(root, gradient, jnp.ones(n), trace)

    tall = [side(2, 6, 2), side(1, 4, 3)]
    grams = [
        own._replace(data=own.data @ own.data.mT)
        for own in (side(3, 3, 5), side(2, 5, 5))
    ]
    found = refresh_roots(grams, tall)
    kernels = [refresh_root] * 2 + [refresh_root_thin] * 2
    for own, kernel, (new, accepted) in zip(grams + tall, kernels, found, strict=True):
        assert accepted.shape == own.scale.shape
        assert accepted.all()
        expected = jax.vmap(kernel)(own.root, own.data)
        chex.assert_trees_all_close(new, expected, rtol=1e-5, atol=1e-6)
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(new, own.root, rtol=1e-2)
