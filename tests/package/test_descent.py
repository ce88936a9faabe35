"""No step ascends: directions that would are replaced, and roots that fail restart."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jorge_optax import (
    BinomialSeries,
    Preconditioner,
    Sides,
    Whitening,
    _guards,
    _steps,
    diagnostics,
    jorge,
)
from jorge_optax._grafting import rescale_stacks
from jorge_optax._sides import apply_roots
from tests.helpers.oracle_cases import CASES, gradients
from tests.helpers.trees import differs, tree

OPTIONS = {"damping": 0.0, "precision": "highest"}
matmul = functools.partial(jnp.matmul, precision="highest")


def refreshed_root(root, gradient):
    """The left root of one tile after a refresh by the paper's rule."""
    right = jnp.eye(gradient.shape[1], dtype=root.dtype)
    kept = Preconditioner({"": Sides(root[None], right[None])}, ())
    new = BinomialSeries().refresh(kept, {"": gradient[None]}, None, **OPTIONS)
    return new.roots[""].left[0]


@pytest.fixture
def unguarded(monkeypatch):
    """Takes both guards out; what is traced meanwhile stays without."""
    turn_off(monkeypatch)


def turn_off(monkeypatch):
    monkeypatch.setattr(_guards, "keep_descent", lambda roots, matrix, made: made)
    monkeypatch.setattr(_guards, "is_lost", lambda product, *_: product != product)
    plain = functools.partial(rescale_stacks, else_lengths=False)
    monkeypatch.setattr(_steps, "rescale_stacks", lambda *args, **_: plain(*args))


# --- the streams of the issue: gradients of low rank, and a little noise ------------

TILES, SHAPE, RANK = 12, (8, 6), 2
CHUNKS, CHUNK = 200, 50


def low_rank(t):
    """Gradients ``[n, R, C]`` of rank 2 in fixed subspaces, and noise of 0.001."""
    rng = np.random.default_rng(0)
    left = jnp.asarray(rng.normal(size=(TILES, SHAPE[0], RANK)), jnp.float32)
    right = jnp.asarray(rng.normal(size=(TILES, RANK, SHAPE[1])), jnp.float32)
    core, noise = jax.random.split(jax.random.fold_in(jax.random.key(0), t))
    core = jax.random.normal(core, (TILES, RANK, RANK), jnp.float32)
    noise = jax.random.normal(noise, (TILES, *SHAPE), jnp.float32)
    return matmul(matmul(left, core), right) + 1e-3 * noise


def cosine(direction, gradient):
    def norm(x):
        return jnp.sqrt(jnp.sum(jnp.square(x), (1, 2)))

    product = jnp.sum(direction * gradient, (1, 2))
    return product / norm(direction) / norm(gradient)


def endure(rule, dtype, chunks=CHUNKS):
    """Cosines ``[steps, n]``, and after each chunk whether each tile was at risk."""
    stack = {"8x6": jax.ShapeDtypeStruct((TILES, *SHAPE), jnp.float32)}
    params = {"w": jnp.zeros((TILES, *SHAPE))}
    start = jorge(0.1, rule=rule, root_dtype=dtype).init(params["w"][0])

    def refresh(kept, t):
        gradient = low_rank(t)
        kept = rule.refresh(kept, {"8x6": gradient}, None, **OPTIONS)
        made = rule.precondition(kept, {"8x6": gradient}, precision="highest")
        return kept, cosine(made["8x6"], gradient)

    def at_risk(kept):
        def of_tile(roots):
            roots = {"8x6": jax.tree.map(lambda x: x[None], roots)}
            state = start[0].tiles._replace(roots=roots)
            report = diagnostics(state, params["w"][0])
            return report["/left/at_risk"][0] | report["/right/at_risk"][0]

        return jax.vmap(of_tile)(kept.roots["8x6"])

    def chunk(kept, first):
        kept, cosines = jax.lax.scan(refresh, kept, first + jnp.arange(CHUNK))
        return kept, (cosines, at_risk(kept))

    kept = rule.init(stack, eps=1e-6, dtype=jnp.dtype(dtype))
    starts = CHUNK * jnp.arange(chunks)
    _, (cosines, risks) = jax.jit(lambda x: jax.lax.scan(chunk, x, starts))(kept)
    return np.asarray(cosines).reshape(-1, TILES), np.asarray(risks)


@pytest.fixture(scope="module")
def failing():
    """The paper's rule in bfloat16 without guards."""
    with pytest.MonkeyPatch.context() as patch:
        turn_off(patch)
        return endure(BinomialSeries(), "bfloat16")


# Whitening takes its roots from statistics in float32: no errors accumulate.
@pytest.mark.parametrize(
    ("rule", "chunks"), [(BinomialSeries(), CHUNKS), (Whitening(), 20)]
)
def test_no_gradient_of_a_long_stream_is_turned_in_bfloat16(rule, chunks, failing):
    cosines, _ = endure(rule, "bfloat16", chunks)
    assert np.all(cosines > 0)
    # Without the guards some are; float32 would take far longer to fail.
    assert np.any(failing[0] < 0)


def test_diagnostics_warn_before_the_first_ascent(failing):
    cosines, risks = failing
    turned = np.flatnonzero(np.any(cosines < 0, 0))
    assert turned.size
    for tile in turned:
        first_ascent = np.argmax(cosines[:, tile] < 0)
        warned_at = CHUNK * (1 + np.argmax(risks[:, tile]))
        assert risks[:, tile].any()
        assert warned_at < first_ascent
    # No warning from the beginning.
    assert not risks[:10].any()


# --- the guards are inactive wherever the plain formula works -----------------------

MATRICES = [c for c, (shape, *_) in CASES.items() if len(shape) > 1 and shape[-1] > 1]


@pytest.mark.parametrize("case", MATRICES)
def test_precondition_changes_no_bit_in_the_oracle_cases(case):
    shape = CASES[case][0]
    rule = BinomialSeries()
    stack = (1, int(np.prod(shape[:-1])), shape[-1])
    struct = jax.ShapeDtypeStruct(stack, jnp.float32)
    kept = rule.init({"": struct}, eps=1e-6, dtype=jnp.dtype("float32"))
    refresh = jax.jit(functools.partial(rule.refresh, momenta=None, **OPTIONS))
    for gradient in gradients(shape, 0, np.float32):
        tile = {"": jnp.asarray(gradient.reshape(stack))}
        kept = refresh(kept, tile)
        guarded = rule.precondition(kept, tile, precision="highest")
        plain = apply_roots(kept.roots, tile, "highest")
        chex.assert_trees_all_equal(guarded, plain)
    differs(chex.assert_trees_all_equal, guarded, {"": plain[""] * (1 + 2.0**-22)})


def test_the_optimizer_computes_the_same_bits_without_guards(monkeypatch):
    params = tree(0)
    optimizer = jorge(0.1, update_interval=2)

    def steps():
        # Op by op: in one program XLA may contract a product and a sum or not.
        state, updates = optimizer.init(params), []
        for t in range(4):
            update, state = optimizer.update(tree(10 + t), state)
            updates.append(update)
        return updates, state

    guarded = steps()
    turn_off(monkeypatch)
    chex.assert_trees_all_equal(guarded, steps())
    differs(chex.assert_trees_all_equal, guarded[0][:-1], guarded[0][1:])


# --- what they do where it does not -------------------------------------------------


def test_an_ascending_direction_becomes_the_gradient_at_the_scale_of_the_roots():
    gradient = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 2)), jnp.float32)
    eye = Sides(*(jnp.tile(jnp.eye(m), (3, 1, 1)) for m in (4, 2)))
    roots = Sides(jnp.asarray([1.0, -4.0, 4.0])[:, None, None] * eye.left, eye.right)
    kept = Preconditioner({"": roots}, ())
    made = BinomialSeries().precondition(kept, {"": gradient}, precision="highest")
    scales = jnp.asarray([1.0, 4.0, 4.0])[:, None, None]
    chex.assert_trees_all_equal(made[""], scales * gradient)
    plain = apply_roots(kept.roots, {"": gradient}, "highest")
    differs(chex.assert_trees_all_equal, plain[""], scales * gradient)


@pytest.mark.parametrize("columns", [2, 6])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_root_that_has_lost_its_gradient_starts_anew(columns, dtype):
    rng = np.random.default_rng(1)
    gradient = jnp.asarray(np.outer(rng.normal(size=6), rng.normal(size=columns)))
    unit = gradient / jnp.linalg.norm(gradient)
    across = jnp.eye(6) - jnp.outer(unit[:, 0], unit[:, 0]) / jnp.sum(unit[:, 0] ** 2)
    along = jnp.eye(6) - across

    def refreshed(share):
        root = (across + share * along).astype(dtype)
        return refreshed_root(root, gradient.astype(jnp.float32))

    anew = jnp.linalg.norm(gradient.astype(jnp.float32)) ** -0.5 * jnp.eye(6)
    anew = anew.astype(dtype)
    restarted = functools.partial(chex.assert_trees_all_close, rtol=2e-6)
    restarted(refreshed(-0.1), anew)
    differs(restarted, refreshed(0.1), anew)
    # What is below the rounding errors of the largest entries is lost in bfloat16.
    if dtype == "bfloat16":
        restarted(refreshed(2.0**-8), anew)
    else:
        differs(restarted, refreshed(2.0**-8), anew)


@pytest.mark.usefixtures("unguarded")
def test_without_the_guard_a_lost_root_is_refreshed():
    gradient = jnp.outer(jnp.eye(6)[0], jnp.ones(2))
    root = jnp.eye(6).at[0, 0].set(-0.1)
    assert refreshed_root(root, gradient)[0, 0] < 0


def test_roots_whose_product_overflows_leave_zeros_zero():
    """Found by optax's own suite, near the end of a run that had converged."""
    large = jnp.full((1, 2, 2), 4e19, jnp.float32)
    assert np.isinf(large[0, 0, 0] * large[0, 0, 0])
    matrix = jnp.asarray([[[0.0, 6e-38], [0.0, 0.0]]], jnp.float32)
    roots = Sides(large, large)
    turned = _guards.keep_descent(roots, matrix, -matrix)
    assert np.isfinite(turned).all()
    assert (np.sign(turned) == np.sign(matrix)).all()
