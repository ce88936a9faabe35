"""Whitening: both sides' statistics of the gradient whitened by the other side."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    PolynomialRoot,
    Tiling,
    Whitening,
    jorge,
    lengths,
    scale_by_jorge,
    state_size,
)
from tests.helpers.lengths import DTYPES, assert_as_long_as_sgd, norm64
from tests.helpers.whitening_oracle import WhiteningTile

RULE = Whitening()
LATE = Whitening(early_refreshes=0)


def exact_root(statistic, precision):
    del precision
    values, vectors = jnp.linalg.eigh(statistic)
    return (vectors * values[None] ** -0.5) @ vectors.T


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
    roots, statistics = (optax.tree.get(state, n)[key] for n in ("roots", "statistics"))
    for found, expected in (
        (roots.left, tile.a),
        (roots.right, tile.b),
        (statistics.left, tile.l),
        (statistics.right, tile.r),
    ):
        chex.assert_trees_all_close(found[0], expected, rtol=1e-9, atol=1e-12)
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(found[0], 1.0001 * expected, rtol=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("change", ["uncoupled", "old order", "fourth root", "slower"])
def test_the_oracle_tells_other_rules_apart(change):
    """The negative control: the comparison detects each of the rule's changes."""

    class Other(WhiteningTile):
        beta2 = 0.95 if change == "slower" else 0.9

        def refresh(self, g):
            if change == "uncoupled" and self.l is not None:
                self.a, self.b = np.eye(self.m), np.eye(self.n)
            super().refresh(g)

        def root(self, statistic):
            root = super().root(statistic)
            if change == "fourth root":
                values, vectors = np.linalg.eigh(root)
                root = (vectors * np.sqrt(values)) @ vectors.T
            return root

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
        chex.assert_trees_all_close(updates, expected, rtol=1e-3)


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
    rule = Whitening(beta2=0.99, inverse_root=exact_root)
    optimizer = scale_by_jorge(rule=rule, update_interval=1)
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


def test_the_two_sides_have_statistics_of_the_same_scale():
    grads = gradients((6, 20), 30)
    optimizer = scale_by_jorge(rule=RULE, update_interval=1)
    state = optimizer.init(jnp.zeros((6, 20)))
    for g in grads:
        _, state = optimizer.update(jnp.asarray(g, jnp.float32), state)
    left, right = (np.asarray(x[0]) for x in state.statistics["6x20"])
    np.testing.assert_allclose(np.trace(left) / 6, np.trace(right) / 20, rtol=1e-5)


def test_one_momentum_is_kept_and_no_more():
    params = {"w": jnp.zeros((6, 4)), "b": jnp.zeros(4)}
    roots, weights, biases = 4 * (6 * 6 + 4 * 4), 4 * 6 * 4, 4 * 4
    assert state_size(params, rule=RULE) == 2 * roots + weights + biases + 4
    # Adam's length: a second moment, and Adam's own state for the bias.
    adam = state_size(params, rule=RULE, grafting=lengths.Adam())
    assert adam == 2 * roots + 2 * weights + 2 * biases + 2 * 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Whitening(beta2=1.0), r"Whitening.beta2 must lie in \[0, 1\), got 1"),
        (lambda: Whitening(start=-1.0), "Whitening.start must be finite and at least"),
        (lambda: Whitening(start=1e38), "Whitening.start must be .* at most 1e.06"),
        (lambda: Whitening(early_refreshes=-1), "early_refreshes must be an integer"),
        (lambda: Whitening(early_refreshes=2**40), "early_refreshes must be .* 2..31"),
        (lambda: Whitening(early_refreshes=True), "early_refreshes must be an integer"),
        (lambda: Whitening(early_refreshes=0.5), "early_refreshes must be an integer"),
        (
            lambda: Whitening(inverse_root="eigh"),
            "Whitening.inverse_root must be a fun",
        ),
        (lambda: PolynomialRoot(order=3), "order must be 2 or 4, got 3"),
        (lambda: jorge(0.1, rule=Whitening), "rule must be .* got <class"),
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


def test_a_row_dead_for_1000_refreshes_wakes():
    pool = jnp.asarray(np.random.default_rng(8).normal(size=(64, 8, 4)), jnp.float32)
    dead = pool.at[:, 3].set(0)

    def gradient_at(t):
        return jnp.where(t < 1000, dead[t % 64], pool[t % 64])

    state, directions = scan(gradient_at, 1040, (8, 4))
    chex.assert_tree_all_finite((state, directions))
    rows = np.linalg.norm(np.asarray(directions[1000:], np.float64), axis=2)
    shares = rows[:, 3] / np.linalg.norm(rows, axis=1)
    # Its gradient enters the statistic before it is whitened: the row that wakes is
    # strong, but does not take over.
    assert np.all(shares < 0.95)
    assert np.mean(shares[20:]) < 0.5


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
    assert cosine > 1 - 1e-5


@pytest.mark.parametrize(
    "options", [{"root_dtype": "bfloat16"}, {"precision": "default"}]
)
def test_low_precision_trains_and_stays_finite(options):
    rng = np.random.default_rng(10)
    grads = [rng.normal(size=(16, 12)) for _ in range(60)]
    assert_as_long_as_sgd(grads, "float32", rule=RULE, **options)
