"""The two files of the rules: each formula for one matrix, against decompositions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax import BinomialSeries, Numerics, Whitening
from jorge_optax._paper import Seen as Gram
from jorge_optax._whitening import Seen, largest_ratio, round_root

SERIES, WHITENING = BinomialSeries(), Whitening()
RULES = {"series": SERIES, "whitening": WHITENING}


def rounding(dtype="float64"):
    with jax.numpy_dtype_promotion("standard"):
        return Numerics(roots=dtype).rounding()


@pytest.fixture(autouse=True)
def strict():
    """No dtype is promoted silently."""
    with jax.numpy_dtype_promotion("strict"):
        yield


def commuting(m, seed=0):
    """Eigenvectors that two matrices share, and eigenvalues of both."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(m, m)))[0]
    first, second = np.exp(rng.normal(size=(2, m)))
    return basis, first, second


def of(basis, values):
    return jnp.asarray((basis * values) @ basis.T)


def whole(rule, root):
    return np.asarray(rule.matrix(root), np.float64)


def root_of(rule, matrix, largest=False):
    """Keeps a matrix as the rule does: the largest entry one, or the trace m."""
    root = rule.init(jnp.ones(len(matrix)), jnp.dtype(matrix.dtype))
    norm = jnp.max(jnp.abs(matrix)) if largest else jnp.trace(matrix) / len(matrix)
    return root._replace(unit=matrix / norm, scale=norm)


# --- the paper's rule ----------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("m", "size"), [(1, 1.0), (2, 1e3), (6, 1.0), (40, 1e-3)])
def test_the_series_is_that_of_the_inverse_fourth_root_to_second_order(m, size):
    """Of the statistic beta2 L + (1 - beta2) G G^T, eigenvalue by eigenvalue."""
    basis, roots, grams = commuting(m)
    root = root_of(SERIES, of(basis, roots), largest=True)
    seen = Gram(of(basis, grams), jnp.asarray(size))
    refresh = jax.jit(SERIES.refresh, static_argnums=3)
    new = refresh(root, seen, jnp.ones(m), rounding())
    assert new.unit.dtype == new.scale.dtype == jnp.float64
    np.testing.assert_allclose(jnp.max(jnp.abs(new.unit)), 1, rtol=1e-12)
    found = np.diag(basis.T @ whole(SERIES, new) @ basis)

    x = roots**4 * grams * size**2
    norm = np.linalg.norm(x)
    beta2 = norm / (norm + 1)
    # 1 - beta2 is beta2 / |X|, without loss of digits.
    exact = (beta2 * (roots**-4 + grams * size**2 / norm)) ** -0.25
    # The first term left out is -15/128 y^3, the next one 13/16 y of it.
    y = x / norm
    error = (found - exact) / (beta2**-0.25 * roots)
    assert np.all(error < 15 / 128 * y**3 + 1e-12)
    assert np.all(error > 15 / 128 * y**3 * (1 - 13 / 16 * y) - 1e-12)


# --- the whitening rule --------------------------------------------------------------


def corrected(root, covariance, rule=WHITENING):
    """Refreshes a root that has whitened a gradient of this covariance."""
    m = len(root)
    own = root_of(rule, jnp.asarray(root))
    # Without energy there is no ridge. The other side has the same scale.
    product = jnp.asarray(root @ covariance @ root / m)
    seen = Seen(product, jnp.zeros(()), own.scale)
    return jax.jit(rule.refresh, static_argnums=3)(own, seen, jnp.ones(m), rounding())


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("reach", "tolerance"), [(0.1, 1e-8), (1, 7e-5), (10, 0.03), (1e4, 0.03)]
)
def test_a_correction_is_that_of_the_inverse_square_root(reach, tolerance):
    """Within twice the error of the polynomial, on eigenvalues of a W up to reach."""
    basis, roots, covariances = commuting(6)
    covariances *= 9 * reach / np.sum((roots**2 * covariances) ** 4) ** 0.25
    a = 1 / 9 * min(1, 10 / reach)
    new = corrected(of(basis, roots), of(basis, covariances))
    found = np.diag(basis.T @ whole(WHITENING, new) @ basis)
    exact = np.sqrt(1 + a) * (roots**-2 + a * covariances) ** -0.5
    np.testing.assert_allclose(found, exact, rtol=tolerance)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(roots, exact, rtol=tolerance)
    np.testing.assert_array_equal(new.unit, new.unit.T)
    np.testing.assert_allclose(jnp.trace(new.unit), 6, rtol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("beta2", [0.7, 0.9])
def test_an_error_off_the_diagonal_is_multiplied_by_minus_one_half(beta2):
    """At the fixed point, which two eigenvalues and a small error in between show."""
    rule, root, error = Whitening(beta2), np.diag([largest_ratio(beta2), 1.0]), 1e-6
    wrong = root + error * np.array([[0, 1], [1, 0]])
    new = whole(rule, corrected(wrong, np.diag(np.diag(root) ** -2.0), rule))
    np.testing.assert_allclose(new[0, 1] / error, -0.5, atol=0.02)
    np.testing.assert_allclose(np.diag(new), np.diag(root), rtol=1e-3)


def test_rounding_cannot_make_a_root_indefinite():
    def least(x):
        return np.linalg.eigvalsh(np.asarray(x, np.float64))[0]

    basis = commuting(64)[0]
    root = of(basis, np.geomspace(1, 1e-4, 64)).astype(jnp.float32)
    root = root + root.T
    rounded = jax.jit(round_root, static_argnums=1)(root, jnp.dtype("bfloat16"))
    assert rounded.dtype == jnp.bfloat16
    assert np.array_equal(rounded, rounded.T)
    assert least(rounded) > 0
    # Needed: plain rounding loses the sign. Not generous: far less than the bound
    # by the norm of the root, 2^-8 |root|, which needs no look at the errors.
    assert least(root.astype(jnp.bfloat16)) < 0
    added = np.diagonal(np.asarray(rounded, np.float64)) - np.diagonal(root)
    assert np.all(added > 0)
    assert np.mean(added) < 0.4 * 2.0**-8 * np.linalg.norm(root)
    np.testing.assert_array_equal(round_root(root, jnp.dtype("float32")), root)


# --- both ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_one_matrix_is_refreshed_without_promotion_of_dtypes(rule, dtype):
    """As the optimizer does it: roots are kept in a dtype, and refreshed in float32."""

    def cast(roots, dtype):
        return [root._replace(unit=root.unit.astype(dtype)) for root in roots]

    @jax.jit
    def step(roots, gradient):
        wide, size = cast(roots, jnp.float32), jnp.max(jnp.abs(gradient))
        seen = rule.observe(*wide, gradient / size, size)
        new = [
            rule.refresh(*own, rounding(dtype))
            for own in zip(wide, seen, real, strict=True)
        ]
        new = cast(new, dtype)
        return new, rule.precondition(*cast(new, jnp.float32), gradient)

    rng = np.random.default_rng(0)
    real = [jnp.ones(6), jnp.ones(4)]
    roots = [rule.init(mask, jnp.dtype(dtype)) for mask in real]
    for _ in range(8):
        gradient = jnp.asarray(rng.normal(size=(6, 4)), jnp.float32)
        roots, direction = step(roots, gradient)
        assert direction.dtype == jnp.float32
        assert jnp.sum(direction * gradient) > 0
    for root, m in zip(roots, (6, 4), strict=True):
        unit = np.asarray(root.unit, np.float64)
        assert root.scale.dtype == jnp.float32
        if rule is SERIES:
            assert np.max(np.abs(unit)) == 1
        else:
            np.testing.assert_array_equal(unit, unit.T)
            assert np.linalg.eigvalsh(unit)[0] > 0
            assert abs(np.trace(unit) / m - 1) < (1e-5 if dtype == "float32" else 0.05)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_tile_that_is_all_padding_divides_by_no_zero(rule):
    """Idle tiles, which pad a stack to a multiple of the devices."""
    real = jnp.zeros(6)
    root = rule.init(real, jnp.dtype("float32"))
    with jax.debug_nans(True):
        # In place of a gradient of zeros the optimizer shows ones, and keeps the roots.
        seen, _ = rule.observe(root, root, jnp.ones((6, 6)), jnp.ones(()))
        new = rule.refresh(root, seen, real, rounding("float32"))
        direction = rule.precondition(new, new, jnp.zeros((6, 6)))
    assert not new.unit.any()
    assert not direction.any()
    assert np.isfinite(new.scale)
