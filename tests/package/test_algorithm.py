"""The algorithm for one matrix, against eigendecompositions in float64."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax import _algorithm
from jorge_optax._algorithm import BINOMIAL_SERIES
from tests.helpers import oracle
from tests.helpers.refresh import matmul, plain_refresh

pytestmark = pytest.mark.usefixtures("x64")


def inverse_fourth_root(statistic):
    values, vectors = np.linalg.eigh(statistic)
    return (vectors * values**-0.25) @ vectors.T


def positive_matrix(rng, side):
    factor = rng.normal(size=(side, side))
    return factor @ factor.T / side + np.eye(side)


def relative_error(actual, expected):
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


def error_at(ratio, statistic, gram, series=BINOMIAL_SERIES):
    beta2 = 1 / (1 + ratio)
    exact = inverse_fourth_root(beta2 * statistic + (1 - beta2) * gram)
    root = jnp.asarray(inverse_fourth_root(statistic))
    return relative_error(plain_refresh(root, gram, ratio, series), exact)


@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_error_on_commuting_pairs_has_the_order_of_the_first_dropped_term(terms):
    rng = np.random.default_rng(0)
    vectors = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    statistic = (vectors * rng.uniform(0.5, 2, 6)) @ vectors.T
    gram = (vectors * rng.uniform(0.1, 2, 6)) @ vectors.T
    series = (-1 / 4, 5 / 32, -15 / 128, 195 / 2048)[:terms]
    ratios = 0.04 / 2 ** np.arange(4)
    errors = [error_at(ratio, statistic, gram, series) for ratio in ratios]
    quotients = np.divide(errors[:-1], errors[1:])
    # Two terms, as in the paper: third order, halving the ratio divides by about 8.
    chex.assert_trees_all_close(
        quotients, np.full(3, 2.0 ** (terms + 1)), rtol=0.1, atol=0
    )
    if terms == 2:
        assert series == BINOMIAL_SERIES


def test_error_on_other_pairs_is_of_first_order():
    rng = np.random.default_rng(1)
    statistic, gram = positive_matrix(rng, 6), positive_matrix(rng, 6)
    errors = [error_at(ratio, statistic, gram) for ratio in (0.02, 0.01, 0.005)]
    chex.assert_trees_all_close(errors[0] / errors[1], 2.0, rtol=0.05)
    chex.assert_trees_all_close(errors[1] / errors[2], 2.0, rtol=0.05)
    # The measured bound: the root is off by less than a tenth of the ratio.
    assert max(np.divide(errors, (0.02, 0.01, 0.005))) < 0.1


@pytest.mark.parametrize("shape", [(5, 5), (12, 3), (3, 12), (9, 1)])
def test_refresh_is_the_papers(shape):
    rng = np.random.default_rng(2)
    root = inverse_fourth_root(positive_matrix(rng, shape[0])) + 0.02 * rng.normal(
        size=(shape[0], shape[0])
    )
    gradient = rng.normal(size=shape)
    gram = gradient @ gradient.T
    found = plain_refresh(jnp.asarray(root), jnp.asarray(gram))
    chex.assert_trees_all_close(found, oracle.refresh(root, gram), rtol=1e-10)
    other = 1.001 * gram + 1e-3 * np.eye(shape[0])
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(found, oracle.refresh(root, other), rtol=1e-10)


def test_ratio_and_growth_are_those_of_the_papers_beta2():
    norms = np.geomspace(1e-3, 1e3, 7)
    beta2 = norms / (norms + 1)
    ratios = _algorithm.ratio(jnp.asarray(norms))
    chex.assert_trees_all_close(ratios, (1 - beta2) / beta2, rtol=1e-10)
    chex.assert_trees_all_close(_algorithm.growth(ratios), beta2**-0.25, rtol=1e-12)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(_algorithm.growth(ratios), beta2**-0.2, rtol=1e-6)


def test_three_terms():
    rng = np.random.default_rng(3)
    series = (-0.24, 0.13, -0.04)
    root = inverse_fourth_root(positive_matrix(rng, 7))
    gradient = rng.normal(size=(7, 3))
    x = np.linalg.matrix_power(root, 4) @ gradient @ gradient.T
    norm = np.linalg.norm(x)
    y = x / norm
    p = np.eye(7) + series[0] * y + series[1] * y @ y + series[2] * y @ y @ y
    expected = (1 + 1 / norm) ** 0.25 * root @ p
    arguments = jnp.asarray(root), jnp.asarray(gradient @ gradient.T)
    found = plain_refresh(*arguments, series=series)
    chex.assert_trees_all_close(found, expected, rtol=1e-10)
    two = plain_refresh(*arguments, series=series[:2])
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(two, expected, rtol=1e-6)


def test_gradient_is_multiplied_by_both_roots():
    rng = np.random.default_rng(4)
    left, gradient, right = (rng.normal(size=s) for s in ((4, 4), (4, 3), (3, 3)))
    found = _algorithm.precondition(left, gradient, right, matmul)
    chex.assert_trees_all_close(found, left @ gradient @ right, rtol=1e-12)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(found, left.T @ gradient @ right, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_initial_root_is_the_root_of_eps(dtype):
    root = _algorithm.initial_root(3, 1e-6, jnp.dtype(dtype))
    assert root.dtype == dtype
    expected = inverse_fourth_root(1e-6 * np.eye(3)).astype(dtype)
    chex.assert_trees_all_close(root, expected, rtol=1e-6)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(root, 1.001 * expected, rtol=1e-6)


def test_refresh_works_under_strict_dtype_promotion():
    with jax.numpy_dtype_promotion("strict"):
        root = _algorithm.initial_root(3, 1e-6, jnp.dtype("float32"))
        new = jax.jit(plain_refresh)(root, jnp.ones((3, 3), jnp.float32))
    assert new.dtype == jnp.float32
    with (
        jax.numpy_dtype_promotion("strict"),
        pytest.raises(ValueError, match="promotion"),
    ):
        plain_refresh(root, jnp.ones((3, 3), jnp.float64))
