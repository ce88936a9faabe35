"""BinomialSeries: the rule on stacks of tiles, against single matrices."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax import BinomialSeries, Preconditioner, Sides, scale_by_jorge
from jorge_optax._algorithm import BINOMIAL_SERIES
from jorge_optax._series import refresh_batches
from tests.helpers.refresh import (
    guarded_refresh,
    matmul,
    plain_refresh,
    plain_refresh_thin,
    root_batch,
)


def roots_near_identity(rng, n, side, dtype=jnp.float32):
    noise = rng.normal(size=(n, side, side))
    return jnp.asarray(np.eye(side)[None] + 0.1 * noise, dtype)


def test_roots_of_many_batches_are_those_of_each_matrix():
    rng = np.random.default_rng(1)

    def batch(n, m, columns, thin):
        gradients = jnp.asarray(rng.normal(size=(n, m, columns)), jnp.float32)
        return root_batch(roots_near_identity(rng, n, m), gradients, thin=thin)

    batches = [batch(3, 3, 5, False), batch(2, 5, 5, False)]
    batches += [batch(2, 6, 2, True), batch(1, 4, 3, True)]
    found = refresh_batches(batches, matmul, BINOMIAL_SERIES)
    for own, (new, accepted) in zip(batches, found, strict=True):
        assert accepted.shape == own.scale.shape
        assert accepted.all()
        alone = plain_refresh_thin if own.thin else plain_refresh
        expected = jax.vmap(alone)(own.root, own.data)
        chex.assert_trees_all_close(new, expected, rtol=1e-5, atol=1e-6)
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(new, own.root, rtol=1e-2)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("thin", [False, True])
def test_scale_of_the_gradient_is_undone(thin):
    rng = np.random.default_rng(5)
    root = roots_near_identity(rng, 1, 5, jnp.float64)[0]
    gradient = jnp.asarray(rng.normal(size=(5, 2)))
    plain = guarded_refresh(root, gradient, thin=thin)
    scaled = guarded_refresh(root, gradient, 8.0, thin=thin)
    chex.assert_trees_all_equal(scaled, plain)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(
            guarded_refresh(root, gradient / 8, thin=thin), plain
        )


def stacks(dtype=jnp.float32):
    """Roots and gradients of three stacks, one of them of thin tiles."""
    rng = np.random.default_rng(4)
    shapes = {"5x4": (2, 5, 4), "4x4": (1, 4, 4), "24x2": (3, 24, 2)}
    roots = {
        key: Sides(
            roots_near_identity(rng, n, rows, dtype),
            roots_near_identity(rng, n, columns, dtype),
        )
        for key, (n, rows, columns) in shapes.items()
    }
    gradients = {k: jnp.asarray(rng.normal(size=s), dtype) for k, s in shapes.items()}
    return Preconditioner(roots, ()), gradients


def refresh_each(kept, gradients, damping=0.0):
    """The plain formula on each side of each tile."""

    def damped(gram):
        eye = jnp.eye(len(gram), dtype=gram.dtype)
        return gram + damping * jnp.trace(gram) / len(gram) * eye

    def both(sides, gradient):
        return Sides(
            plain_refresh(sides.left, damped(matmul(gradient, gradient.T))),
            plain_refresh(sides.right, damped(matmul(gradient.T, gradient))),
        )

    return {k: jax.vmap(both)(kept.roots[k], g) for k, g in gradients.items()}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("damping", [0.0, 0.1])
def test_rule_refreshes_each_side_of_each_tile(damping):
    """Damping adds a share of the mean of the diagonal to each Gram matrix."""
    kept, gradients = stacks(jnp.float64)
    options = {"damping": damping, "precision": "highest"}
    new = BinomialSeries().refresh(kept, gradients, None, **options)
    expected = refresh_each(kept, gradients, damping)
    chex.assert_trees_all_close(new.roots, expected, rtol=1e-9, atol=1e-12)
    other = refresh_each(kept, gradients, damping + 1e-3)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(new.roots, other, rtol=1e-6)


def test_rule_refreshes_from_the_momentum_only_if_it_preconditions_that():
    kept, gradients = stacks()
    momenta = jax.tree.map(lambda g: g + jnp.flip(g), gradients)
    sources = {"gradient": gradients, "nesterov": gradients, "momentum": momenta}
    options = {"damping": 0.0, "precision": "highest"}
    for preconditions, source in sources.items():
        rule = BinomialSeries(preconditions=preconditions)
        new = rule.refresh(kept, gradients, momenta, **options)
        expected = refresh_each(kept, source)
        chex.assert_trees_all_close(new.roots, expected, rtol=1e-4, atol=1e-5)
        other = refresh_each(kept, gradients if source is momenta else momenta)
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(new.roots, other, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("thin", [False, True])
def test_refresh_works_under_strict_dtype_promotion(thin):
    with jax.numpy_dtype_promotion("strict"):
        root, gradient = jnp.eye(3), jnp.ones((3, 2))
        new = jax.jit(lambda *a: guarded_refresh(*a, thin=thin))(root, gradient)
    assert new.dtype == jnp.float32


@pytest.mark.usefixtures("x64")
def test_series_may_have_any_factors():
    rng = np.random.default_rng(3)
    for factors in (
        (-0.25,),
        (-0.2304, 0.0727),
        (-1 / 4, 5 / 32, -15 / 128, 195 / 2048),
    ):
        for shape in ((5, 4), (12, 2)):
            g = rng.normal(size=shape)
            optimizer = scale_by_jorge(
                update_interval=1, rule=BinomialSeries(factors), root_dtype="float64"
            )
            params = jnp.zeros(shape)
            _, state = optimizer.update(jnp.asarray(g), optimizer.init(params))
            root = 1e-6**-0.25 * np.eye(shape[0])
            x = np.linalg.matrix_power(root, 4) @ g @ g.T
            norm = np.linalg.norm(x)
            series = np.eye(shape[0]) + sum(
                f * np.linalg.matrix_power(x / norm, k + 1)
                for k, f in enumerate(factors)
            )
            expected = (1 + 1 / norm) ** 0.25 * root @ series
            found = next(iter(state.roots.values())).left[0]
            chex.assert_trees_all_close(found, expected, rtol=1e-9)
            with pytest.raises(AssertionError):
                chex.assert_trees_all_close(found, expected * 1.0001, rtol=1e-9)


def test_one_factor_costs_one_product_less():
    def products(factors):
        optimizer = scale_by_jorge(rule=BinomialSeries(factors))
        params = jax.ShapeDtypeStruct((8, 8), "float32")
        state = jax.eval_shape(optimizer.init, params)
        return str(jax.make_jaxpr(optimizer.update)(params, state)).count("dot_general")

    assert products((-0.25,)) == products((-0.25, 0.15)) - 1
    assert products((-0.25, 0.15, -0.1)) == products((-0.25, 0.15)) + 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: BinomialSeries(()),
            r"BinomialSeries.factors must be at least 1 finite number, got \(\)",
        ),
        (
            lambda: BinomialSeries((np.nan,)),
            "BinomialSeries.factors must be at least 1 finite number, got",
        ),
        (
            lambda: BinomialSeries(-0.25),
            "BinomialSeries.factors must be at least 1 finite number, got -0.25",
        ),
        (
            lambda: BinomialSeries(preconditions="sgd"),
            "BinomialSeries.preconditions must be one of gradient, momentum, nesterov, "
            "got 'sgd'",
        ),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
