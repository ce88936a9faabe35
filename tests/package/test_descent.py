"""No step ascends: directions that would are replaced, and roots that fail restart."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax import (
    BinomialSeries,
    MatrixView,
    Numerics,
    Tiling,
    Whitening,
    diagnostics,
    scale_by_jorge,
)
from jorge_optax._paper import Seen
from tests.helpers.plain import Plain

SERIES = BinomialSeries()


# --- long streams: gradients of low rank, and a little noise -------------------------

CHUNKS, CHUNK = 200, 50
SHAPE, RANK = (12, 8, 6), 2


def low_rank(t):
    """Gradients ``[n, R, C]`` in fixed subspaces, and noise of 0.001."""
    n, rows, columns = SHAPE
    rng = np.random.default_rng(0)
    left = jnp.asarray(rng.normal(size=(n, rows, RANK)), jnp.float32)
    right = jnp.asarray(rng.normal(size=(n, RANK, columns)), jnp.float32)
    core, noise = jax.random.split(jax.random.fold_in(jax.random.key(0), t))
    core = jax.random.normal(core, (n, RANK, RANK), jnp.float32)
    matmul = functools.partial(jnp.matmul, precision="highest")
    noise = jax.random.normal(noise, SHAPE, jnp.float32)
    return matmul(matmul(left, core), right) + 1e-3 * noise


def cosine(x, y):
    norms = [jnp.sqrt(jnp.sum(jnp.square(own), (1, 2))) for own in (x, y)]
    return jnp.sum(x * y, (1, 2)) / (norms[0] * norms[1])


@functools.cache
def endure(rule, dtype, chunks=CHUNKS):
    """Returns cosines ``[steps, n]``, after each chunk ``at_risk``, and the roots."""
    tiling = Tiling(view=lambda path, shape: MatrixView((1,), (2,)))
    optimizer = scale_by_jorge(
        rule=rule, update_interval=1, numerics=Numerics(dtype), tiling=tiling
    )
    params = {"w": jnp.zeros(SHAPE)}

    def step(state, t):
        gradient = low_rank(t)
        direction, state = optimizer.update({"w": gradient}, state)
        return state, cosine(direction["w"], gradient)

    def chunk(state, first):
        state, cosines = jax.lax.scan(step, state, first + jnp.arange(CHUNK))
        report = diagnostics(state, params, None, optimizer)
        return state, (cosines, report["w/left/at_risk"] | report["w/right/at_risk"])

    starts = CHUNK * jnp.arange(chunks)
    run = jax.jit(lambda state: jax.lax.scan(chunk, state, starts))
    state, (cosines, risks) = run(optimizer.init(params))
    roots = [np.float64(root.unit) for own in state.roots for root in own.values()]
    return np.asarray(cosines).reshape(chunks * CHUNK, -1), np.asarray(risks), roots


# Whitening bounds its rounding errors: they do not accumulate.
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rule", [SERIES, Whitening()])
def test_no_gradient_of_a_long_stream_is_turned(rule, dtype):
    long = rule == SERIES and dtype == "bfloat16"
    cosines, _, roots = endure(rule, dtype, CHUNKS if long else 20)
    assert np.all(cosines > 0)
    if isinstance(rule, Whitening):
        for root in roots:
            values = np.linalg.eigvalsh(root)
            assert np.all(values[:, 0] > 2.0**-25 * np.linalg.norm(values, axis=1))


def test_without_guards_diagnostics_warn_before_the_first_ascent():
    """The negative control, in bfloat16; float32 would take far longer to fail."""
    cosines, risks, _ = endure(Plain(), "bfloat16")
    turned = np.flatnonzero(np.any(cosines < 0, 0))
    assert turned.size
    for tile in turned:
        first_ascent = np.argmax(cosines[:, tile] < 0)
        warned_at = CHUNK * (1 + np.argmax(risks[:, tile]))
        assert risks[:, tile].any()
        assert warned_at < first_ascent
    # No warning from the beginning.
    assert not risks[:10].any()


# --- what they do where it does not --------------------------------------------------


def root_of(matrix, dtype="float32"):
    root = SERIES.init(jnp.ones(len(matrix)), jnp.dtype("float32"))
    largest = jnp.max(jnp.abs(matrix))
    unit = (matrix / largest).astype(dtype).astype(jnp.float32)
    return root._replace(unit=unit, scale=largest)


@pytest.mark.parametrize("scale", [1.0, -4.0, 4.0])
def test_an_ascending_direction_becomes_the_gradient_at_the_scale_of_the_roots(scale):
    gradient = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2)), jnp.float32)
    roots = root_of(scale * jnp.eye(4)), root_of(jnp.eye(2))
    found = SERIES.precondition(*roots, gradient)
    np.testing.assert_allclose(found, abs(scale) * gradient, rtol=1e-6)
    plain = Plain().precondition(*roots, gradient)
    np.testing.assert_allclose(plain, scale * gradient, rtol=1e-6)


def refreshed(rule, matrix, gradient, dtype="float32"):
    """Returns the left root after a refresh, as the optimizer makes it."""
    size = jnp.max(jnp.abs(gradient))
    unit = gradient / size
    rounding = Numerics(dtype).rounding()
    root, seen = root_of(matrix, dtype), Seen(unit @ unit.T, size)
    return rule.matrix(rule.refresh(root, seen, jnp.ones(len(matrix)), rounding))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_root_that_has_lost_its_gradient_starts_again(dtype):
    rng = np.random.default_rng(1)
    gradient = np.outer(rng.normal(size=6), rng.normal(size=2))
    unit = gradient[:, 0] / np.linalg.norm(gradient[:, 0])
    along = np.outer(unit, unit)
    new = np.linalg.norm(gradient) ** -0.5 * np.eye(6)

    def restarts(rule, share):
        root = jnp.asarray(np.eye(6) - along + share * along, jnp.float32)
        found = refreshed(rule, root, jnp.asarray(gradient, jnp.float32), dtype)
        return np.allclose(found, new, rtol=2e-6, atol=0)

    assert restarts(SERIES, -0.1)
    assert not restarts(SERIES, 0.1)
    # What is below the rounding errors of the largest entries is lost in bfloat16.
    assert restarts(SERIES, 2.0**-8) == (dtype == "bfloat16")
    assert not restarts(Plain(), -0.1)


def test_roots_of_any_scale_leave_zeros_zero():
    """Found by optax's own suite, near the end of a run that had converged."""
    root = root_of(4e19 * jnp.ones((2, 2)))
    matrix = jnp.asarray([[0.0, 1.0], [0.0, 0.0]])
    for size in (6e-38, 1.0, 1e37):
        for sign in (1, -1):
            turned = root._replace(unit=sign * root.unit)
            found = SERIES.precondition(root, turned, size * matrix)
            assert np.isfinite(found).all()
            assert np.sum(found * matrix) > 0
            assert sign == 1 or (np.sign(found) == np.sign(matrix)).all()
