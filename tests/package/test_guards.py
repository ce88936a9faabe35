"""It never breaks by our own doing, where the plain formula would."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    BinomialSeries,
    Preconditioner,
    Sides,
    Tiling,
    jorge,
    scale_by_jorge,
)
from jorge_optax._algorithm import BINOMIAL_SERIES
from jorge_optax._grafting import rescale
from jorge_optax._series import refresh_batches
from jorge_optax._thin_tiles import choose_thin
from tests.helpers.lengths import DTYPES, assert_as_long_as_sgd, norm64
from tests.helpers.oracle_cases import CASES, gradients
from tests.helpers.refresh import (
    matmul,
    plain_refresh,
    plain_refresh_thin,
    root_batch,
)


@functools.partial(jax.jit, static_argnames="repeats")
def run_unguarded(grads, repeats=1):
    """The plain formula over all gradients [steps, m, n], several times."""

    def step(root, gradient):
        return plain_refresh(root, matmul(gradient, gradient.T)), None

    start = 1e-6**-0.25 * jnp.eye(grads.shape[1], dtype=jnp.float32)
    grads = jnp.tile(grads.astype(jnp.float32), (repeats, 1, 1))
    return jax.lax.scan(step, start, grads)[0]


def scan_roots(gradient_at, steps, shape):
    """Runs scale_by_jorge with a refresh at every step, all in one compiled scan."""
    optimizer = scale_by_jorge(update_interval=1)

    def step(state, t):
        _, state = optimizer.update(gradient_at(t), state)
        return state, None

    state = optimizer.init(jnp.zeros(shape))
    return optimizer, jax.jit(lambda s: jax.lax.scan(step, s, jnp.arange(steps))[0])(
        state
    )


# --- the guards are inactive, bit for bit, wherever the oracle was -----------------


def first_tiles(case):
    """The first tile of each gradient of a case, ``[1, R, C]``."""
    shape, row_cuts, column_cuts = CASES[case]
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    height, width = (row_cuts or (rows,))[0], (column_cuts or (columns,))[0]
    for gradient in gradients(shape, 0, np.float32):
        yield jnp.asarray(gradient.reshape(1, rows, columns)[:, :height, :width])


# The cases with roots.
MATRICES = [c for c, (shape, *_) in CASES.items() if len(shape) > 1 and shape[-1] > 1]
# In stacks: a batched product may round differently from that of two matrices.
plain_by_gram = jax.vmap(lambda root, g: plain_refresh(root, matmul(g, g.T)))
plain_thin = jax.vmap(plain_refresh_thin)


def first_root(side):
    return 1e-6**-0.25 * jnp.eye(side, dtype=jnp.float32)[None]


@pytest.mark.parametrize("case", MATRICES)
@pytest.mark.parametrize("thin", [False, True])
def test_guards_change_no_bit_in_the_oracle_cases(case, thin):
    guarded = plain = first_root(next(first_tiles(case)).shape[1])
    for tile in first_tiles(case):
        batch = root_batch(guarded, tile, thin=thin)
        ((guarded, accepted),) = refresh_batches([batch], matmul, BINOMIAL_SERIES)
        assert accepted.all()
        plain = (plain_thin if thin else plain_by_gram)(plain, tile)
        chex.assert_trees_all_equal(guarded, plain)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(guarded, plain * (1 + 2.0**-22))


@pytest.mark.parametrize("case", MATRICES)
def test_rule_changes_no_bit_of_the_plain_formula_in_the_oracle_cases(case):
    """The scale of the gradient included, and both sides in one batch if square."""
    _, rows, columns = next(first_tiles(case)).shape
    kept = Preconditioner({"": Sides(first_root(rows), first_root(columns))}, ())
    plain = kept.roots[""]
    # The long side of some tiles is refreshed without its Gram matrix.
    thin = choose_thin(frozenset({(1, rows, columns)}), len(BINOMIAL_SERIES))
    tall = plain_thin if thin and rows > columns else plain_by_gram
    wide = plain_thin if thin and rows < columns else plain_by_gram
    options = {"damping": 0.0, "precision": "highest"}
    for tile in first_tiles(case):
        kept = BinomialSeries().refresh(kept, {"": tile}, None, **options)
        plain = Sides(tall(plain.left, tile), wide(plain.right, tile.mT))
        chex.assert_trees_all_equal(kept.roots[""], plain)
    nudged = jax.tree.map(lambda x: x * (1 + 2.0**-22), plain)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(kept.roots[""], nudged)


# --- zero gradients ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_gradients_for_1000_steps(dtype):
    optimizer = jorge(0.1, 0.9, 1e-3, update_interval=1)
    params = {"w": jnp.ones((6, 4), dtype), "b": jnp.ones((4,), dtype)}
    zeros = jax.tree.map(jnp.zeros_like, params)

    def step(carry, gradient):
        params, state = carry
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), updates

    start = params, optimizer.init(params)
    many = jax.tree.map(lambda x: jnp.zeros((1000, *x.shape), dtype), params)
    (after, state), updates = jax.jit(lambda c: jax.lax.scan(step, c, many))(start)
    chex.assert_tree_all_finite((after, state, updates))
    chex.assert_trees_all_equal(
        optax.tree.get(state, "roots"), optax.tree.get(start[1], "roots")
    )
    # Then training starts as if nothing had been.
    gradient = jax.tree.map(lambda x: 0.5 * jnp.ones_like(x), zeros)
    late, _ = optimizer.update(gradient, state, params)
    early, _ = optimizer.update(gradient, start[1], params)
    chex.assert_trees_all_close(late, early, rtol=1e-6)
    assert norm64(early) > 0
    assert not np.isfinite(plain_refresh(jnp.eye(6), jnp.zeros((6, 6)))).any()


# --- directions that no gradient excites -------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_dead_for_100_000_refreshes_wakes(dtype):
    rng = np.random.default_rng(0)
    pool = rng.normal(size=(64, 8, 4))
    awake = jnp.asarray(pool, dtype)
    dead = awake.at[:, 3].set(0)

    def gradient_at(t):
        return dead[t % 64]

    optimizer, state = scan_roots(gradient_at, 100_000, (8, 4))
    roots = optax.tree.get(state, "roots")["8x4"]
    chex.assert_tree_all_finite(roots)
    # The live rows are still preconditioned: the direction is close to the gradient's.
    direction, _ = optimizer.update(dead[0], state)
    direction, gradient = (np.asarray(x, np.float64) for x in (direction, dead[0]))
    cosine = np.sum(direction * gradient) / norm64(direction) / norm64(gradient)
    assert cosine > 0.95

    whole = jorge(1.0, update_interval=1)
    whole_state = optax.tree.set(
        whole.init(jnp.zeros((8, 4), dtype)), roots=optax.tree.get(state, "roots")
    )
    params = jnp.zeros((8, 4), dtype)
    sgd = optax.trace(0.9)
    sgd_state = sgd.init(jnp.zeros((8, 4)))
    shares = []
    update = jax.jit(whole.update)
    for t in range(150):
        updates, whole_state = update(awake[t % 64], whole_state, params)
        expected, sgd_state = sgd.update(awake[t % 64].astype(jnp.float32), sgd_state)
        chex.assert_tree_all_finite((updates, whole_state))
        assert abs(norm64(updates) / norm64(expected) - 1) < 1e-2
        shares.append(norm64(updates[3]) / norm64(updates))
    # At first the step points almost only there; in the end it is one row of eight.
    assert shares[0] > 0.99
    assert np.mean(shares[-20:]) < 0.6

    # The formula as it stands overflows within a few thousand refreshes.
    assert not np.isfinite(run_unguarded(dead, repeats=50)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis_aligned", [True, False])
def test_rank_one_gradients(dtype, axis_aligned):
    rng = np.random.default_rng(1)
    left, right = rng.normal(size=16), rng.normal(size=8)
    if axis_aligned:
        left, right = np.eye(16)[2], np.eye(8)[5]
    gradient = jnp.asarray(np.outer(left, right), dtype)
    assert_as_long_as_sgd([gradient] * 40, dtype)
    optimizer, state = scan_roots(lambda t: gradient, 20_000, (16, 8))
    chex.assert_tree_all_finite(state)
    direction, _ = optimizer.update(gradient, state)
    direction, gradient = (np.asarray(x, np.float64) for x in (direction, gradient))
    assert np.sum(direction * gradient) > 0
    if axis_aligned:
        plain = run_unguarded(jnp.asarray(gradient)[None], repeats=1000)
        assert not np.isfinite(plain).all()


# --- huge and tiny gradients -------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1e-18, 1e18, 1e-30, 1e30])
@pytest.mark.parametrize("shape", [(32, 24), (32, 4)])
def test_scaled_gradients(dtype, factor, shape):
    rng = np.random.default_rng(2)
    grads = [factor * rng.normal(size=shape) for _ in range(60)]
    assert_as_long_as_sgd(grads, dtype)
    assert_as_long_as_sgd(grads, dtype, tiling=Tiling(8))


@pytest.mark.parametrize("factor", [1e-18, 1e18, 1e-30])
def test_scaled_gradients_break_the_plain_formula(factor):
    rng = np.random.default_rng(2)
    grads = jnp.asarray(factor * rng.normal(size=(60, 32, 24)), jnp.float32)
    _, state = scan_roots(lambda t: grads[t], 60, (32, 24))
    chex.assert_tree_all_finite(state)
    assert not np.isfinite(run_unguarded(grads)).all()


def test_roots_follow_the_scale_of_the_gradient():
    """After sudden changes of scale by 1e3 up and down, and of 1e18 at once."""
    rng = np.random.default_rng(3)
    grads = [rng.normal(size=(12, 6)) for _ in range(90)]
    for scales in ([1, 1e3, 1], [1, 1e-3, 1], [1e18, 1e-18, 1]):
        scaled = [scales[t // 30] * g for t, g in enumerate(grads)]
        # Momentum remembers the larger scale for a while: without it, the direction is
        # that of the roots at each step.
        optimizer = jorge(1.0, 0.0, update_interval=1)
        state = optimizer.init(jnp.zeros((12, 6)))
        update = jax.jit(optimizer.update)
        for gradient in scaled:
            updates, state = update(jnp.asarray(gradient, jnp.float32), state)
            chex.assert_tree_all_finite((updates, state))
            assert abs(norm64(updates) / np.linalg.norm(gradient) - 1) < 1e-5


@pytest.mark.parametrize("jit", [False, True])
def test_a_quotient_of_tiny_numbers_is_grafted_at_its_length(jit):
    """XLA may make a / (b * scale) of (a / b) / scale, and b * scale may underflow."""

    def grafted(numerator, denominator, direction):
        return rescale(numerator / denominator, direction)

    numerator = jnp.asarray([0.0, 2.6e-38, -1.6e-38, -3.0e-38])
    denominator = jnp.asarray([5e-3, 6e-3, 1.6e-3, 1e-2])
    direction = jnp.asarray([1e-32, 2e-32, -3e-32, 0.0])
    function = jax.jit(grafted) if jit else grafted
    result = function(numerator, denominator, direction)
    expected = norm64(numerator / denominator)
    assert abs(norm64(result) / expected - 1) < 1e-4
    assert norm64(result * 1.01) / expected - 1 > 1e-3


# --- one tile of several -----------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tiny_gradient_in_one_tile_does_not_take_over_the_leaf(dtype):
    rng = np.random.default_rng(4)
    tiling = Tiling(8)
    grads = [rng.normal(size=(16, 8)) for _ in range(80)]
    grads[40][:8] *= 1e-4  # one refresh of the upper tile on a tiny gradient

    def shares(optimizer):
        """Share of the upper tile in the step after the tiny gradient."""
        params = jnp.zeros((16, 8), dtype)
        state = optimizer.init(params)
        update = jax.jit(optimizer.update)
        result = []
        for gradient in grads:
            updates, state = update(jnp.asarray(gradient, dtype), state, params)
            chex.assert_tree_all_finite((updates, state))
            result.append(norm64(updates[:8]) / norm64(updates))
        return np.array(result)

    tiled = shares(jorge(1.0, update_interval=1, tiling=tiling))
    assert np.all(np.abs(tiled - np.sqrt(0.5)) < 0.2)
    assert_as_long_as_sgd(grads, dtype, tiling=tiling)
    # With one norm for the whole leaf the upper tile would be nearly all of the step.
    from jorge_optax import graft

    by_leaf = graft(
        optax.trace(0.9),
        optax.chain(
            scale_by_jorge(update_interval=1, tiling=tiling),
            optax.ema(0.9, debias=False),
        ),
    )
    assert np.all(shares(by_leaf)[41:60] > 0.99)


# --- gradients that are not finite -------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bad_gradient_never_enters_the_roots(bad, dtype):
    rng = np.random.default_rng(5)
    optimizer = jorge(1.0, update_interval=1, tiling=Tiling(6))
    params = jnp.zeros((12, 6), dtype)
    state = optimizer.init(params)
    for _ in range(3):
        gradient = jnp.asarray(rng.normal(size=(12, 6)), dtype)
        _, state = optimizer.update(gradient, state, params)
    before = optax.tree.get(state, "roots")["6x6"]
    _, state = optimizer.update(gradient.at[2, 1].set(bad), state, params)
    after = optax.tree.get(state, "roots")["6x6"]
    chex.assert_tree_all_finite(after)
    # The tile with the bad entry keeps its roots, the other one is refreshed.
    chex.assert_trees_all_equal(
        jax.tree.map(lambda x: x[0], after), jax.tree.map(lambda x: x[0], before)
    )
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(
            jax.tree.map(lambda x: x[1], after), jax.tree.map(lambda x: x[1], before)
        )
    gram = np.full((6, 6), bad, np.float32)
    assert not np.isfinite(plain_refresh(jnp.eye(6), gram)).all()


# --- economy of roots --------------------------------------------------------------


def test_roots_in_bfloat16_train_and_stay_finite():
    rng = np.random.default_rng(6)
    grads = [rng.normal(size=(16, 12)) for _ in range(60)]
    assert_as_long_as_sgd(grads, "float32", root_dtype="bfloat16")
    optimizer = jorge(1.0, root_dtype="bfloat16")
    roots = optax.tree.get(optimizer.init(jnp.zeros((16, 12))), "roots")
    chex.assert_trees_all_equal_dtypes(
        roots, jax.tree.map(lambda x: x.astype(jnp.bfloat16), roots)
    )


def test_momenta_in_bfloat16_train_and_stay_finite():
    rng = np.random.default_rng(7)
    grads = [rng.normal(size=(16, 12)) for _ in range(60)]
    options = {"root_dtype": "bfloat16", "accumulator_dtype": "bfloat16"}
    assert_as_long_as_sgd(grads, "float32", tolerance=2e-2, **options)
    params = jnp.zeros((16, 12))
    state = jorge(1.0, **options).init(params)
    floats = [
        x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    assert {x.dtype.name for x in floats} == {"bfloat16"}
    updates, new = jorge(1.0, **options).update(jnp.ones((16, 12)), state, params)
    chex.assert_trees_all_equal_dtypes(new, state)
    assert updates.dtype == jnp.float32
    # Rounded only where they are kept: with no past, the step is that of float32.
    plain = jorge(1.0, root_dtype="bfloat16")
    expected, _ = plain.update(jnp.ones((16, 12)), plain.init(params), params)
    chex.assert_trees_all_close(updates, expected, rtol=1e-6)
