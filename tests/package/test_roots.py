"""The kernel alone, against eigendecompositions in float64."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax._roots import BINOMIAL_SERIES, refresh_root, refresh_root_thin
from jorge_optax._numerics import nearest_power_of_two, split_scale
from tests.helpers import oracle

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
    return relative_error(refresh_root(root, gram, ratio=ratio, series=series), exact)


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
@pytest.mark.parametrize("ratio", [None, 0.3])
def test_the_two_orders_of_products_agree_with_each_other_and_the_paper(shape, ratio):
    rng = np.random.default_rng(2)
    root = inverse_fourth_root(positive_matrix(rng, shape[0])) + 0.02 * rng.normal(
        size=(shape[0], shape[0])
    )
    gradient = rng.normal(size=shape)
    gram = gradient @ gradient.T
    by_gram = refresh_root(jnp.asarray(root), jnp.asarray(gram), ratio=ratio)
    thin = refresh_root_thin(jnp.asarray(root), jnp.asarray(gradient), ratio=ratio)
    chex.assert_trees_all_close(by_gram, thin, rtol=1e-10)
    if ratio is None:
        chex.assert_trees_all_close(by_gram, oracle.refresh(root, gram), rtol=1e-10)
    other = refresh_root(jnp.asarray(root), 1.001 * gram + 1e-3 * np.eye(shape[0]))
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(other, thin, rtol=1e-10)


def test_three_terms_agree_between_the_orders_of_products():
    rng = np.random.default_rng(3)
    series = (-0.24, 0.13, -0.04)
    root = jnp.asarray(inverse_fourth_root(positive_matrix(rng, 7)))
    gradient = jnp.asarray(rng.normal(size=(7, 3)))
    by_gram = refresh_root(root, gradient @ gradient.T, series=series)
    thin = refresh_root_thin(root, gradient, series=series)
    chex.assert_trees_all_close(by_gram, thin, rtol=1e-10)
    x = np.linalg.matrix_power(root, 4) @ gradient @ gradient.T
    norm = np.linalg.norm(x)
    y = x / norm
    p = np.eye(7) + series[0] * y + series[1] * y @ y + series[2] * y @ y @ y
    expected = (1 + 1 / norm) ** 0.25 * np.asarray(root) @ p
    chex.assert_trees_all_close(thin, expected, rtol=1e-10)


def test_damping_adds_a_share_of_the_mean_of_the_diagonal():
    rng = np.random.default_rng(4)
    root = jnp.asarray(inverse_fourth_root(positive_matrix(rng, 5)))
    gram = jnp.asarray(positive_matrix(rng, 5))
    damped = refresh_root(root, gram, damping=0.1)
    by_hand = gram + 0.1 * jnp.trace(gram) / 5 * jnp.eye(5)
    chex.assert_trees_all_close(damped, refresh_root(root, by_hand), rtol=1e-12)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(damped, refresh_root(root, gram), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scales_are_exact_powers_of_two(dtype):
    values = jnp.asarray([1e-30, 0.3, 1.0, 2.9, 3.1, 1e30], dtype)
    powers = nearest_power_of_two(values)
    assert powers.dtype == dtype
    mantissas, _ = np.frexp(np.asarray(powers))
    chex.assert_trees_all_equal(mantissas, np.full(6, 0.5, dtype))
    assert np.all((values / powers > 0.66) & (values / powers < 1.51))
    unit, scale = split_scale(values[1:5])
    chex.assert_trees_all_equal(unit * scale, values[1:5])


def test_scale_of_the_gradient_is_undone():
    rng = np.random.default_rng(5)
    root = jnp.asarray(inverse_fourth_root(positive_matrix(rng, 5)))
    gradient = jnp.asarray(rng.normal(size=(5, 2)))
    for refresh, argument in (
        (refresh_root, lambda g: g @ g.T),
        (refresh_root_thin, lambda g: g),
    ):
        plain = refresh(root, argument(gradient))
        chex.assert_trees_all_equal(refresh(root, argument(gradient / 8), 8.0), plain)
        with pytest.raises(AssertionError):
            chex.assert_trees_all_equal(refresh(root, argument(gradient / 8)), plain)


@pytest.mark.parametrize("refresh", [refresh_root, refresh_root_thin])
def test_kernel_works_under_strict_dtype_promotion(refresh):
    with jax.numpy_dtype_promotion("strict"):
        root = jnp.eye(3, dtype=jnp.float32)
        new = jax.jit(functools.partial(refresh, precision="highest"))(
            root, jnp.ones((3, 3), jnp.float32), jnp.ones((), jnp.float32)
        )
    assert new.dtype == jnp.float32
