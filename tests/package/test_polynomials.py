"""PolynomialRoot, against eigendecompositions."""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax import PolynomialRoot
from jorge_optax._polynomials import POLYNOMIALS, count_products, inverse_root


class Facts(NamedTuple):
    """What the docs say of the default polynomials."""

    error: float  # the largest relative error
    smallest: float  # the smallest eigenvalue for which it holds
    largest: float  # the root's largest eigenvalue
    least: float  # and its least


FACTS = Facts(0.0296, 3e-5, 248.3, 0.97)


def matrix(eigenvalues, seed=0):
    size = len(eigenvalues)
    random = np.random.default_rng(seed).normal(size=(size, size))
    vectors = np.linalg.qr(random)[0]
    return (vectors * eigenvalues) @ vectors.T, vectors


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e20])
def test_root_is_within_the_error_of_the_polynomials(scale):
    # The largest four times: then the bound is at least twice the largest.
    eigenvalues = scale * np.r_[np.geomspace(3 * FACTS.smallest, 1, 60), 1, 1, 1]
    statistic, vectors = matrix(eigenvalues)
    root = np.asarray(PolynomialRoot()(jnp.asarray(statistic), "highest"))
    relative = np.diag(vectors.T @ root @ vectors) * np.sqrt(eigenvalues)
    assert 1 - FACTS.error < relative.min() < 0.98
    assert 1.02 < relative.max() < 1 + FACTS.error


@pytest.mark.usefixtures("x64")
def test_eigenvalues_too_small_for_the_polynomials_get_the_largest_root():
    statistic, vectors = matrix(np.r_[1.0, 1e-9, 0.0, -1e-12])
    root = np.asarray(PolynomialRoot()(jnp.asarray(statistic), "highest"))
    values = np.diag(vectors.T @ root @ vectors)
    largest = np.prod([polynomial[0] for polynomial in POLYNOMIALS])
    np.testing.assert_allclose(values[1:], largest, rtol=1e-4)
    assert abs(values[0] - 1) < FACTS.error


def test_eigenvalues_of_the_root_are_bounded_from_both_sides():
    """The bounds of docs/whitening.md."""
    x = np.r_[0, np.geomspace(1e-12, 1, 10_000)]
    y, rest = np.ones_like(x), x
    for polynomial in POLYNOMIALS:
        factor = np.polynomial.Polynomial(polynomial)(rest)
        y, rest = y * factor, rest * factor**2
    assert y.max() == y[0] < FACTS.largest
    assert y.min() > FACTS.least


def test_roots_are_symmetric_to_the_bit_and_positive():
    rng = np.random.default_rng(1)
    for rank in (1, 7, 64):
        g = jnp.asarray(rng.normal(size=(64, rank)), jnp.float32)
        root = np.asarray(PolynomialRoot()(g @ g.T, "highest"))
        chex.assert_trees_all_equal(root, root.T)
        values = np.linalg.eigvalsh(root)
        assert values[0] > values[-1] / 300
    assert not np.array_equal(g @ g.T @ g @ g.T @ g, (g @ g.T @ g @ g.T @ g).T)


@pytest.mark.parametrize("degrees", [(1,), (2,), (3,), (4, 4), (2, 4, 1), (5, 6)])
def test_any_polynomials_and_the_count_of_their_products(degrees):
    rng = np.random.default_rng(2)
    polynomials = tuple(
        tuple(rng.uniform(0.1, 0.5, size=degree + 1)) for degree in degrees
    )
    statistic, vectors = matrix(np.linspace(0.1, 1, 6))
    function = functools.partial(
        inverse_root, polynomials=polynomials, precision="highest"
    )
    values = np.linspace(0.1, 1, 6)
    squares = degrees[0] > 1
    bound = np.sum(values**4) ** 0.25 if squares else np.sqrt(np.sum(values**2))
    x, y = values / bound, bound**-0.5
    for polynomial in polynomials:
        factor = np.polynomial.Polynomial(polynomial)(x)
        x, y = x * factor**2, y * factor
    root = np.asarray(function(jnp.asarray(statistic, jnp.float32)))
    np.testing.assert_allclose(np.diag(vectors.T @ root @ vectors), y, rtol=1e-4)
    text = str(jax.make_jaxpr(function)(jnp.ones((6, 6))))
    assert text.count("dot_general") == count_products(polynomials)


@pytest.mark.parametrize(
    ("polynomials", "message"),
    [
        ((), "at least one polynomial"),
        (((1.0,),), r"at least 2 finite numbers, got \(1.0,\)"),
        (((1.0, np.nan),), "at least 2 finite numbers, got"),
        ((3.0,), "at least 2 finite numbers, got 3.0"),
        (((1, -2),), "must be positive .* falls to -1: roots would not be positive"),
        (((2, -1), (1, -2)), "must be positive"),
    ],
)
def test_bad_polynomials_are_refused(polynomials, message):
    with pytest.raises((TypeError, ValueError), match=message):
        PolynomialRoot(polynomials=polynomials)


def test_polynomials_are_kept_as_tuples_of_floats():
    root = PolynomialRoot(polynomials=[np.array([2, -1])])
    assert root == PolynomialRoot(polynomials=((2.0, -1.0),)) != PolynomialRoot()
    assert hash(root) == hash(PolynomialRoot(polynomials=((2.0, -1.0),)))
