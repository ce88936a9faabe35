"""Whitening: roots corrected by the gradient that they have whitened."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    BinomialSeries,
    Tiling,
    Whitening,
    diagnostics,
    graft,
    jorge,
    lengths,
    scale_by_jorge,
    state_size,
)
from jorge_optax._whitening import Batch, correct, largest_ratio, round_root
from tests.helpers.lengths import DTYPES, assert_as_long_as_sgd, norm64
from tests.helpers.whitening_oracle import WhiteningTile

RULE = Whitening()
LATE = Whitening(early_refreshes=0)


def scan(gradient_at, steps, shape, **options):
    """Runs scale_by_jorge with a refresh at every step, in one compiled scan."""
    optimizer = scale_by_jorge(update_interval=1, rule=RULE, **options)

    def step(state, t):
        direction, state = optimizer.update(gradient_at(t), state)
        return state, direction

    state = optimizer.init(jnp.zeros(shape))
    return jax.jit(lambda s: jax.lax.scan(step, s, jnp.arange(steps)))(state)


def gradients(shape, steps, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) * np.exp(rng.normal()) for _ in range(steps)]


# --- against the oracle --------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", [(7, 5), (4, 9), (2, 2), (12, 3)])
@pytest.mark.parametrize("interval", [1, 3])
def test_steps_and_state_are_those_of_the_oracle(shape, interval):
    optimizer = jorge(
        1.0, 0.9, rule=LATE, update_interval=interval, root_dtype="float64"
    )
    params = jnp.zeros(shape)
    state, tile = optimizer.init(params), WhiteningTile(*shape)
    update = jax.jit(optimizer.update)
    for t, g in enumerate(gradients(shape, 25)):
        updates, state = update(jnp.asarray(g), state, params)
        expected = -tile.step(g, 0.9, t % interval == 0)
        chex.assert_trees_all_close(updates, expected, rtol=1e-9, atol=1e-12)
    key = f"{shape[0]}x{shape[1]}"
    roots = optax.tree.get(state, "roots")[key]
    for found, expected in ((roots.left, tile.a), (roots.right, tile.b)):
        chex.assert_trees_all_close(found[0], expected, rtol=1e-9, atol=1e-12)
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(found[0], 1.0001 * expected, rtol=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "change",
    ["other side ignored", "old order", "one factor", "faster", "no ridge"],
)
def test_the_oracle_tells_other_rules_apart(change):
    """The negative control: the comparison detects each part of the rule."""

    class Other(WhiteningTile):
        beta2 = 0.6 if change == "faster" else 0.9
        ridge = 0.0 if change == "no ridge" else WhiteningTile.ridge

        def refresh(self, g):
            if change != "other side ignored":
                super().refresh(g)
                return
            b, self.b = self.b, np.eye(self.n)
            super().refresh(g)
            left = self.a
            self.a, self.b = np.eye(self.m), b
            super().refresh(g)
            self.a = left

        def correct(self, root, w):
            new = super().correct(root, w)
            if change == "one factor":
                new = np.linalg.solve(root, new @ np.linalg.inv(root)) @ root
            return new

        def direction(self, g, beta1):
            if change != "old order":
                return super().direction(g, beta1)
            self.s = beta1 * self.s + g
            self.average = beta1 * getattr(self, "average", 0) + self.a @ g @ self.b
            return (1 - beta1) * self.average

    shape = (7, 5)
    optimizer = jorge(1.0, 0.9, rule=LATE, update_interval=2, root_dtype="float64")
    state, other = optimizer.init(jnp.zeros(shape)), Other(*shape)
    for t, g in enumerate(gradients(shape, 8)):
        updates, state = optimizer.update(jnp.asarray(g), state)
        expected = -other.step(g, 0.9, t % 2 == 0)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(updates, expected, rtol=1e-8)


@pytest.mark.usefixtures("x64")
def test_without_grafting_the_scale_is_that_of_the_momentum():
    shape = (6, 8)
    optimizer = scale_by_jorge(
        rule=RULE, momentum=0.9, update_interval=1, root_dtype="float64"
    )
    state, tile = optimizer.init(jnp.zeros(shape)), WhiteningTile(*shape)
    for g in gradients(shape, 10):
        direction, state = optimizer.update(jnp.asarray(g), state)
        tile.refresh(g)
        expected = tile.direction(g, 0.9)
        chex.assert_trees_all_close(direction, expected, rtol=1e-9, atol=1e-12)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(direction, 10 * expected, rtol=1e-2)


# --- what it is for ------------------------------------------------------------------


def test_whitened_gradients_have_the_identity_for_their_covariance():
    rng = np.random.default_rng(1)
    left, right = (
        np.linalg.qr(rng.normal(size=(n, n)))[0] * np.geomspace(1, 0.1, n)
        for n in (12, 8)
    )
    pool = jnp.asarray(left @ rng.normal(size=(4000, 12, 8)) @ right.T, jnp.float32)
    optimizer = scale_by_jorge(rule=Whitening(beta2=0.98), update_interval=1)
    state = optimizer.init(pool[0])
    state, _ = jax.lax.scan(
        lambda state, g: (optimizer.update(g, state)[1], None), state, pool
    )
    roots = state.roots["12x8"]
    unit = pool / jnp.sqrt(jnp.mean(jnp.square(pool), (1, 2), keepdims=True))
    whitened = np.asarray(roots.left[0] @ unit @ roots.right[0])
    flat = whitened.reshape(4000, -1)
    covariance = flat.T @ flat / 4000
    raw = np.asarray(pool).reshape(4000, -1)
    assert np.linalg.cond(raw.T @ raw) > 1e3
    assert np.linalg.cond(covariance) < 3
    assert 0.8 < np.mean(np.diag(covariance)) < 1.25


def test_both_sides_have_the_same_mean_eigenvalue_and_are_symmetric():
    optimizer = scale_by_jorge(rule=RULE, update_interval=1)
    state = optimizer.init(jnp.zeros((6, 20)))
    for g in gradients((6, 20), 30):
        _, state = optimizer.update(jnp.asarray(g, jnp.float32), state)
    left, right = (np.asarray(x[0]) for x in state.roots["6x20"])
    np.testing.assert_allclose(np.trace(left) / 6, np.trace(right) / 20, rtol=1e-5)
    for root in (left, right):
        np.testing.assert_array_equal(root, root.T)
        assert not np.allclose(root, np.mean(np.diag(root)) * np.eye(len(root)))


def test_one_momentum_and_the_roots_are_kept_and_no_more():
    params = {"w": jnp.zeros((6, 4)), "b": jnp.zeros(4)}
    roots, weights, biases = 4 * (6 * 6 + 4 * 4), 4 * 6 * 4, 4 * 4
    assert state_size(params, rule=RULE) == roots + weights + biases + 4
    # Adam's length: a second moment, and Adam's own state for the bias.
    adam = state_size(params, rule=RULE, grafting=lengths.Adam())
    assert adam == roots + 2 * weights + 2 * biases + 2 * 4
    assert state_size(params) == roots + 2 * weights + biases + 4  # the paper's rule


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Whitening(beta2=1.0), r"Whitening.beta2 must lie in \[0, 1\), got 1"),
        (lambda: Whitening(beta2=0.0), "Whitening.beta2 must be"),
        (lambda: Whitening(early_refreshes=-1), "early_refreshes must be an integer"),
        (lambda: Whitening(early_refreshes=2**40), "early_refreshes must be .* 2..31"),
        (lambda: Whitening(early_refreshes=True), "early_refreshes must be an integer"),
        (lambda: Whitening(early_refreshes=0.5), "early_refreshes must be an integer"),
        (lambda: jorge(0.1, rule=Whitening), "rule must be .* got the class"),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


# --- guards --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1.0, 1e-18, 1e18, 1e-30, 1e30])
def test_scaled_gradients(dtype, factor):
    rng = np.random.default_rng(5)
    grads = [factor * rng.normal(size=(32, 24)) for _ in range(30)]
    assert_as_long_as_sgd(grads, dtype, rule=RULE)
    assert_as_long_as_sgd(grads, dtype, rule=RULE, tiling=Tiling(8))


@pytest.mark.parametrize("exponent", [-60, 60])
def test_a_common_scale_of_all_gradients_changes_no_root(exponent):
    grads = [jnp.asarray(g, jnp.float32) for g in gradients((8, 6), 20)]
    optimizer = scale_by_jorge(rule=RULE, momentum=0.9, update_interval=2)
    plain, scaled = (optimizer.init(grads[0]) for _ in range(2))
    for g in grads:
        expected, plain = optimizer.update(g, plain)
        found, scaled = optimizer.update(2.0**exponent * g, scaled)
    roots = [optax.tree.get(state, "roots") for state in (scaled, plain)]
    chex.assert_trees_all_equal(*roots)
    chex.assert_trees_all_close(2.0**-exponent * found, expected, rtol=1e-5)


def test_roots_are_refreshed_at_each_of_the_first_steps():
    grads = [jnp.asarray(g, jnp.float32) for g in gradients((6, 4), 8)]
    optimizer = scale_by_jorge(rule=Whitening(early_refreshes=3), update_interval=5)
    state = optimizer.init(grads[0])
    changed = []
    for g in grads:
        _, after = optimizer.update(g, state)
        changed.append(
            not np.array_equal(*(s.roots["6x4"].left for s in (state, after)))
        )
        state = after
    assert changed == [True, True, True, False, False, True, False, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_gradients_change_nothing(dtype):
    rng = np.random.default_rng(6)
    optimizer = jorge(0.1, rule=RULE, update_interval=1)
    params = jnp.ones((6, 4), dtype)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for _ in range(2):  # before the first gradient, and after it
        for _ in range(3):
            updates, after = update(jnp.zeros_like(params), state, params)
            chex.assert_tree_all_finite((updates, after))
            chex.assert_trees_all_equal(
                optax.tree.get(after, "roots"), optax.tree.get(state, "roots")
            )
            state = after
        before = state
        _, state = update(jnp.asarray(rng.normal(size=(6, 4)), dtype), state, params)
        with pytest.raises(AssertionError):
            chex.assert_trees_all_equal(
                optax.tree.get(before, "roots"), optax.tree.get(state, "roots")
            )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_gradient_never_enters_the_roots(bad):
    rng = np.random.default_rng(7)
    optimizer = jorge(1.0, update_interval=1, tiling=Tiling(6), rule=RULE)
    params = jnp.zeros((12, 6))
    state = optimizer.init(params)
    for _ in range(3):
        gradient = jnp.asarray(rng.normal(size=(12, 6)), jnp.float32)
        _, state = optimizer.update(gradient, state, params)
    _, after = optimizer.update(gradient.at[2, 1].set(bad), state, params)
    old, new = (optax.tree.get(s, "roots")["6x6"] for s in (state, after))
    chex.assert_tree_all_finite(new)
    first, second = (jax.tree.map(lambda x, i=i: x[i], (old, new)) for i in range(2))
    chex.assert_trees_all_equal(*first)  # the tile with the bad entry
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(*second)


def test_a_tiny_gradient_in_one_tile_does_not_make_it_large():
    """Here not even with one norm for the whole leaf."""
    rng = np.random.default_rng(10)
    grads = [rng.normal(size=(16, 8)) for _ in range(60)]
    grads[40][:8] *= 1e-4

    def shares(rule):
        optimizer = graft(
            optax.trace(0.9),
            scale_by_jorge(update_interval=1, tiling=Tiling(8), rule=rule),
        )
        state = optimizer.init(jnp.zeros((16, 8)))
        update = jax.jit(optimizer.update)
        result = []
        for gradient in grads:
            updates, state = update(jnp.asarray(gradient, jnp.float32), state)
            result.append(norm64(updates[:8]) / norm64(updates))
        return np.array(result[41:])

    assert np.all(np.abs(shares(RULE) - np.sqrt(0.5)) < 0.2)
    assert np.all(shares(BinomialSeries()) > 0.99)


def test_diagnostics_know_of_the_rule():
    params = {"w": jnp.zeros((6, 4))}
    grads = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)))}
    reports = {}
    for rule in (BinomialSeries(), RULE):
        optimizer = jorge(0.1, rule=rule)
        _, state = optimizer.update(grads, optimizer.init(params))
        reports[rule] = diagnostics(state, params, grads)
    assert set(reports[BinomialSeries()]) - set(reports[RULE]) == {
        f"w/{side}/{name}" for side in ("left", "right") for name in ("beta2", "growth")
    }
    assert reports[RULE]["w/left/asymmetry"] < 1e-6
    assert reports[BinomialSeries()]["w/left/asymmetry"] > 0


def test_a_row_dead_for_1000_refreshes_wakes():
    pool = jnp.asarray(np.random.default_rng(8).normal(size=(64, 8, 4)), jnp.float32)
    dead = pool.at[:, 3].set(0)

    def gradient_at(t):
        return jnp.where(t < 1000, dead[t % 64], pool[t % 64])

    state, directions = scan(gradient_at, 1040, (8, 4))
    chex.assert_tree_all_finite((state, directions))
    rows = np.linalg.norm(np.asarray(directions[1000:], np.float64), axis=2)
    shares = rows[:, 3] / np.linalg.norm(rows, axis=1)
    # Its gradient corrects the root before it is whitened: the row that wakes leads
    # the first steps, and no longer after 20 of them.
    assert np.mean(shares[20:]) < 0.5


@pytest.mark.parametrize("beta2", [0.7, 0.9])
def test_the_root_of_a_dead_row_is_bounded(beta2):
    pool = jnp.asarray(np.random.default_rng(8).normal(size=(64, 8, 4)), jnp.float32)
    dead = (pool * jnp.geomspace(1, 0.3, 8)[None, :, None]).at[:, 3].set(0)
    optimizer = scale_by_jorge(rule=Whitening(beta2=beta2), update_interval=1)
    state, _ = jax.lax.scan(
        lambda state, t: (optimizer.update(dead[t % 64], state)[1], None),
        optimizer.init(dead[0]),
        jnp.arange(3000),
    )
    values = np.linalg.eigvalsh(np.asarray(state.roots["8x4"].left[0], np.float64))
    ratio = largest_ratio(beta2)
    assert 0.2 * ratio < values[-1] / values[0] < ratio


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("beta2", [0.7, 0.9])
def test_an_error_off_the_diagonal_is_multiplied_by_minus_one_half(beta2):
    """At the fixed point, which two eigenvalues and a small error in between show."""
    root = jnp.diag(jnp.array([largest_ratio(beta2), 1.0]))
    error = 1e-6
    wrong = root.at[0, 1].set(error).at[1, 0].set(error)
    statistic = jnp.diag(jnp.diag(root) ** -2)
    covariance = wrong @ statistic @ wrong
    options = dict(ridge=0.0, matmul=jnp.matmul, weight=(1 - beta2) / beta2)
    one, trace = jnp.ones(1), jnp.trace(covariance)[None]
    batch = Batch(wrong[None], covariance[None], one, trace, one)
    (found,) = correct([batch], **options)
    new = found.scale[0] * (found.half + found.half.mT)[0]
    np.testing.assert_allclose(new[0, 1] / error, -0.5, atol=0.02)
    np.testing.assert_allclose(jnp.diag(new), jnp.diag(root), rtol=1e-3)


@pytest.mark.parametrize("axis_aligned", [True, False])
def test_rank_one_gradients(axis_aligned):
    rng = np.random.default_rng(9)
    left, right = rng.normal(size=16), rng.normal(size=8)
    if axis_aligned:
        left, right = np.eye(16)[2], np.eye(8)[5]
    gradient = jnp.asarray(np.outer(left, right), jnp.float32)
    state, directions = scan(lambda t: gradient, 5_000, (16, 8))
    chex.assert_tree_all_finite(state)
    last = np.asarray(directions[-1], np.float64)
    cosine = np.sum(last * gradient) / norm64(last) / norm64(gradient)
    assert cosine > 0.999


@pytest.mark.parametrize(
    "options", [{"root_dtype": "bfloat16"}, {"precision": "default"}]
)
def test_low_precision_trains_and_stays_finite(options):
    rng = np.random.default_rng(10)
    grads = [rng.normal(size=(16, 12)) for _ in range(60)]
    assert_as_long_as_sgd(grads, "float32", rule=RULE, **options)


def low_rank(t):
    key = jax.random.fold_in(jax.random.key(4), t)
    noise, middle = jax.random.normal(key, (24, 16)), jax.random.normal(key, (3, 3))
    bases = jax.random.normal(jax.random.key(5), (2, 24, 3))
    return bases[0] @ middle @ bases[1, :16].T + 1e-3 * noise


@pytest.mark.parametrize("options", [{}, {"root_dtype": "bfloat16"}])
def test_directions_never_ascend_and_roots_stay_positive(options):
    optimizer = scale_by_jorge(update_interval=1, rule=RULE, **options)

    def step(state, t):
        g = low_rank(t)
        direction, state = optimizer.update(g, state)
        return state, jnp.sum(direction * g) / jnp.linalg.norm(direction)

    state = optimizer.init(jnp.zeros((24, 16)))
    state, cosines = jax.jit(lambda s: jax.lax.scan(step, s, jnp.arange(2000)))(state)
    assert np.all(np.asarray(cosines) > 0)
    for root in state.roots["24x16"]:
        values = np.linalg.eigvalsh(np.asarray(root[0], np.float64))
        assert values[0] > 2.0**-25 * np.linalg.norm(values)


def least_eigenvalue(root):
    return np.linalg.eigvalsh(np.asarray(root, np.float64))[0]


@pytest.mark.parametrize("seed", range(5))
def test_rounding_cannot_make_a_root_indefinite(seed):
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(64, 64)))[0]
    root = (basis * np.geomspace(1, 1e-4, 64)) @ basis.T
    root = jnp.asarray(root + root.T, jnp.float32)
    rounded = jax.jit(lambda x: round_root(x[None], jnp.bfloat16)[0])(root)
    assert rounded.dtype == jnp.bfloat16
    assert np.array_equal(rounded, rounded.T)
    assert least_eigenvalue(rounded) > 0
    # Needed: plain rounding loses the sign. Not generous: far less than the bound by
    # the norm of the root, 2^-8 |root|, which would be added without a look at E.
    assert least_eigenvalue(root.astype(jnp.bfloat16)) < 0
    added = np.diagonal(np.asarray(rounded, np.float64)) - np.diagonal(root)
    assert np.all(added > 0)
    assert np.mean(added) < 0.4 * 2.0**-8 * np.linalg.norm(root)


def test_a_root_of_the_same_dtype_is_not_rounded():
    root = jnp.asarray(np.random.default_rng(0).normal(size=(1, 4, 4)), jnp.float32)
    assert np.array_equal(round_root(root, jnp.dtype(jnp.float32)), root)
