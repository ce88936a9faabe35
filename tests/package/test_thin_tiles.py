"""The order of products for thin tiles, against that by way of the Gram matrix."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax import _thin_tiles
from tests.helpers.refresh import plain_refresh, plain_refresh_thin

SERIES = (-0.24, 0.13, -0.04)


def root_and_gradient(shape):
    rng = np.random.default_rng(2)
    root = np.eye(shape[0]) + 0.1 * rng.normal(size=(shape[0], shape[0]))
    return jnp.asarray(root), jnp.asarray(rng.normal(size=shape))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", [(5, 5), (12, 3), (3, 12), (9, 1)])
@pytest.mark.parametrize("ratio", [None, 0.3])
@pytest.mark.parametrize("terms", [1, 2, 3])
def test_both_orders_of_products_agree(shape, ratio, terms):
    root, gradient = root_and_gradient(shape)
    gram, series = gradient @ gradient.T, SERIES[:terms]
    thin = plain_refresh_thin(root, gradient, ratio, series)
    chex.assert_trees_all_close(
        thin, plain_refresh(root, gram, ratio, series), rtol=1e-9, atol=1e-12
    )
    other = plain_refresh(root, 1.001 * gram + 1e-3 * np.eye(len(gram)), ratio, series)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(thin, other, rtol=1e-9, atol=1e-12)


def multiplications(function, *shapes):
    """Counts the scalar multiplications of all matrix products of a function."""
    count = 0
    for equation in jax.make_jaxpr(function)(*map(jnp.ones, shapes)).eqns:
        inner = equation.params.get("jaxpr")
        equations = inner.jaxpr.eqns if inner is not None else [equation]
        for product in equations:
            if product.primitive.name == "dot_general":
                ((contracted,), _), _ = product.params["dimension_numbers"]
                shape = product.invars[0].aval.shape
                count += math.prod(product.outvars[0].aval.shape) * shape[contracted]
    return count


@pytest.mark.parametrize("terms", [1, 2, 3])
@pytest.mark.parametrize("shape", [(12, 3), (40, 4)])
def test_multiplications_are_counted(shape, terms):
    m, n = shape
    series = SERIES[:terms]

    def by_gram(root, gradient):
        gram = jnp.matmul(gradient, gradient.T)
        return plain_refresh(root, gram, series=series)

    def thin(root, gradient):
        return plain_refresh_thin(root, gradient, series=series)

    counted = [multiplications(f, (m, m), (m, n)) for f in (by_gram, thin)]
    assert counted[0] == _thin_tiles.gram_multiplications(m, n, terms)
    assert counted[1] == _thin_tiles.thin_multiplications(m, n, terms)


def test_the_order_is_chosen_where_it_saves_a_share_of_all_multiplications():
    thin = (1, 40, 4)
    assert _thin_tiles.choose_thin(frozenset({thin}), 2) == {(40, 4)}
    assert _thin_tiles.choose_thin(frozenset({(1, 4, 40)}), 2) == {(4, 40)}
    assert not _thin_tiles.choose_thin(frozenset({(1, 8, 8)}), 2)
    # Beside much larger tiles it is not worth its own kernels.
    assert not _thin_tiles.choose_thin(frozenset({thin, (9, 400, 400)}), 2)
