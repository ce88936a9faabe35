"""TrackedStatistics: Shampoo's statistics and roots of them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    BinomialSeries,
    PolynomialRoot,
    Tiling,
    TrackedStatistics,
    Whitening,
    describe,
    diagnostics,
    graft,
    jorge,
    scale_by_jorge,
    state_size,
)
from tests.helpers.lengths import DTYPES, assert_as_long_as_sgd, norm64

RULE = TrackedStatistics()
# Whitening keeps statistics, too; it shares these guards.
with_statistics = pytest.mark.parametrize(
    "rule", [RULE, Whitening()], ids=["tracked", "whitening"]
)


def scan(gradient_at, steps, shape, rule=RULE):
    """scale_by_jorge with a refresh at every step, in one compiled scan."""
    optimizer = scale_by_jorge(update_interval=1, rule=rule)

    def step(state, t):
        direction, state = optimizer.update(gradient_at(t), state)
        return state, direction

    state = optimizer.init(jnp.zeros(shape))
    return jax.jit(lambda s: jax.lax.scan(step, s, jnp.arange(steps)))(state)


# --- options -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta2": 1.0}, r"TrackedStatistics.beta2 must lie in \[0, 1\), got 1"),
        ({"beta2": "much"}, "TrackedStatistics.beta2 must be a number, got 'much'"),
        ({"start": -1.0}, "TrackedStatistics.start must be finite and at least 0"),
        (
            {"inverse_root": ((1.0, 2.0),)},
            r"TrackedStatistics.inverse_root must be a function .* got \(\(1.0, 2.0\)",
        ),
        (
            {"preconditions": "sgd"},
            "TrackedStatistics.preconditions must be one of gradient, momentum, "
            "nesterov, got 'sgd'",
        ),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        TrackedStatistics(**options)


def exact_root(statistic, precision):
    del precision
    values, vectors = jnp.linalg.eigh(statistic)
    return (vectors * values[None] ** -0.25) @ vectors.T


@pytest.mark.parametrize(
    ("inverse_root", "reference"),
    [
        (exact_root, lambda values: values**-0.25),
        (
            PolynomialRoot(polynomials=((0.5, 0.5),)),
            lambda values: (
                (0.5 + 0.5 * values / np.linalg.norm(values))
                * np.linalg.norm(values) ** -0.25
            ),
        ),
    ],
)
def test_roots_are_what_inverse_root_makes_of_the_statistics(inverse_root, reference):
    rng = np.random.default_rng(0)
    rule = TrackedStatistics(inverse_root=inverse_root)
    optimizer = scale_by_jorge(update_interval=1, rule=rule)
    state = optimizer.init(jnp.zeros((5, 3)))
    for _ in range(3):
        gradient = jnp.asarray(rng.normal(size=(5, 3)), jnp.float32)
        _, state = optimizer.update(gradient, state)
    for side in ("left", "right"):
        found = getattr(state.roots["5x3"], side)[0]
        statistic = np.asarray(getattr(state.statistics["5x3"], side)[0], np.float64)
        values, vectors = np.linalg.eigh(statistic)
        expected = (vectors * reference(values)) @ vectors.T
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        default = PolynomialRoot()(jnp.asarray(statistic), "highest")
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(default, expected, rtol=1e-4, atol=1e-4)


def test_statistics_are_float32_at_least():
    for root_dtype in ("float32", "bfloat16"):
        optimizer = jorge(0.1, rule=RULE, root_dtype=root_dtype)
        state = optimizer.init(jnp.zeros((6, 4), jnp.bfloat16))
        statistics = optax.tree.get(state, "statistics")
        assert {leaf.dtype for leaf in jax.tree.leaves(statistics)} == {
            jnp.dtype("float32")
        }
        roots = optax.tree.get(state, "roots")
        assert {leaf.dtype.name for leaf in jax.tree.leaves(roots)} == {root_dtype}


def test_damping_adds_a_share_of_the_mean_of_the_diagonal():
    g = np.random.default_rng(4).normal(size=(5, 3))
    optimizer = scale_by_jorge(update_interval=1, rule=RULE, damping=0.2)
    _, state = optimizer.update(jnp.asarray(g, jnp.float32), optimizer.init(g))
    gram = g @ g.T
    damped = 0.05 * (gram + 0.5 * np.trace(gram) / 5 * np.eye(5))
    np.testing.assert_allclose(state.statistics["5x3"].left[0], damped, atol=1e-6)
    _, state = optimizer.update(jnp.asarray(g, jnp.float32), state)
    damped = 0.95 * damped + 0.05 * (gram + 0.2 * np.trace(gram) / 5 * np.eye(5))
    np.testing.assert_allclose(state.statistics["5x3"].left[0], damped, atol=1e-6)


def test_start_adds_to_the_first_gram_only():
    rng = np.random.default_rng(4)
    for start in (0.0, 1.0, 3.0):
        rule = TrackedStatistics(start=start)
        optimizer = scale_by_jorge(update_interval=1, rule=rule)
        state = optimizer.init(jnp.zeros((5, 3)))
        expected = 0
        for k in range(3):
            g = rng.normal(size=(5, 3)) * 100**-k
            _, state = optimizer.update(jnp.asarray(g, jnp.float32), state)
            gram = g.T @ g
            extra = start * np.trace(gram) / 3 * np.eye(3) if k == 0 else 0
            expected = 0.95 * expected + 0.05 * (gram + extra)
            found = state.statistics["5x3"].right[0]
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_diagnostics_and_sizes_know_of_statistics():
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
    assert set(reports[RULE]) <= set(reports[BinomialSeries()])
    assert reports[RULE]["w/left/asymmetry"] == 0
    assert reports[BinomialSeries()]["w/left/asymmetry"] > 0

    more = 4 * (6 * 6 + 4 * 4)
    assert state_size(params, rule=RULE) == state_size(params) + more
    row = describe(params, rule=RULE).leaves[0]
    assert row.state_bytes == describe(params).leaves[0].state_bytes + more


# --- it never breaks ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1.0, 1e-18, 1e18, 1e-30, 1e30])
def test_scaled_gradients(dtype, factor):
    rng = np.random.default_rng(5)
    grads = [factor * rng.normal(size=(32, 24)) for _ in range(30)]
    assert_as_long_as_sgd(grads, dtype, rule=RULE)
    assert_as_long_as_sgd(grads, dtype, rule=RULE, tiling=Tiling(8))


@with_statistics
@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_gradients_change_nothing(rule, dtype):
    rng = np.random.default_rng(6)
    optimizer = jorge(0.1, rule=rule, update_interval=1)
    params = jnp.ones((6, 4), dtype)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for zeros in (3, 0):  # before the first gradient, and after it
        for _ in range(2000 if zeros == 0 else 3):
            updates, after = update(jnp.zeros_like(params), state, params)
            chex.assert_tree_all_finite((updates, after))
            for field in ("roots", "statistics"):
                chex.assert_trees_all_equal(
                    optax.tree.get(after, field), optax.tree.get(state, field)
                )
            state = after
            if zeros == 0:
                break
        gradient = jnp.asarray(rng.normal(size=(6, 4)), dtype)
        before = state
        _, state = update(gradient, state, params)
        with pytest.raises(AssertionError):
            chex.assert_trees_all_equal(
                optax.tree.get(before, "roots"), optax.tree.get(state, "roots")
            )


@with_statistics
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_gradient_never_enters_roots_or_statistics(rule, bad):
    rng = np.random.default_rng(7)
    optimizer = jorge(1.0, update_interval=1, tiling=Tiling(6), rule=rule)
    params = jnp.zeros((12, 6))
    state = optimizer.init(params)
    for _ in range(3):
        gradient = jnp.asarray(rng.normal(size=(12, 6)), jnp.float32)
        _, state = optimizer.update(gradient, state, params)
    _, after = optimizer.update(gradient.at[2, 1].set(bad), state, params)
    for field in ("roots", "statistics"):
        old, new = (optax.tree.get(s, field)["6x6"] for s in (state, after))
        chex.assert_tree_all_finite(new)
        first, second = (
            jax.tree.map(lambda x, i=i: x[i], (old, new)) for i in range(2)
        )
        chex.assert_trees_all_equal(*first)  # the tile with the bad entry
        with pytest.raises(AssertionError):
            chex.assert_trees_all_equal(*second)


def test_a_row_dead_for_100_000_refreshes_wakes():
    pool = jnp.asarray(np.random.default_rng(8).normal(size=(64, 8, 4)), jnp.float32)
    dead = pool.at[:, 3].set(0)

    def gradient_at(t):
        return jnp.where(t < 100_000, dead[t % 64], pool[t % 64])

    state, directions = scan(gradient_at, 100_040, (8, 4))
    chex.assert_tree_all_finite((state, directions))
    rows = np.linalg.norm(np.asarray(directions[100_000:], np.float64), axis=2)
    shares = rows[:, 3] / np.linalg.norm(rows, axis=1)
    # As with exact roots, the gradient enters the statistic before it is
    # preconditioned: the row that wakes is strong, but does not take over.
    assert np.all(shares < 0.9)
    assert np.mean(shares[20:]) < 0.5
    by_series, directions = scan(gradient_at, 100_040, (8, 4), BinomialSeries())
    rows = np.linalg.norm(np.asarray(directions[100_000:], np.float64), axis=2)
    assert np.all(rows[:20, 3] / np.linalg.norm(rows[:20], axis=1) > 0.9)


@pytest.mark.parametrize("axis_aligned", [True, False])
def test_rank_one_gradients(axis_aligned):
    rng = np.random.default_rng(9)
    left, right = rng.normal(size=16), rng.normal(size=8)
    if axis_aligned:
        left, right = np.eye(16)[2], np.eye(8)[5]
    gradient = jnp.asarray(np.outer(left, right), jnp.float32)
    state, directions = scan(lambda t: gradient, 20_000, (16, 8))
    chex.assert_tree_all_finite(state)
    last = np.asarray(directions[-1], np.float64)
    cosine = np.sum(last * gradient) / norm64(last) / norm64(gradient)
    assert cosine > 1 - 1e-6


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
