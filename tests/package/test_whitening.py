"""Whitening: roots corrected by the gradient that they have whitened."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    BinomialSeries,
    Numerics,
    Tiling,
    Whitening,
    graft,
    jorge,
    lengths,
    scale_by_jorge,
)
from jorge_optax._whitening import largest_ratio
from tests.helpers.whitening_oracle import WhiteningTile

SHAPES = {"tall": (7, 5), "wide": (4, 9), "two by two": (2, 2), "very tall": (12, 3)}
STEPS = 25
QUICK = {"xla_backend_optimization_level": 0}  # to compile


def gradients(shape, steps=STEPS, seed=0):
    """Of different sizes, which the roots must not see."""
    rng = np.random.default_rng(seed)
    return np.stack(
        [rng.normal(size=shape) * np.exp(rng.normal()) for _ in range(steps)]
    )


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def run(optimizer, grads):
    """Returns all steps, and the roots after each."""

    def step(state, gradient):
        update, state = optimizer.update(gradient, state)
        return state, (update, optax.tree.get(state, "roots"))

    first = jax.tree.map(lambda x: x[0], grads)
    return jax.lax.scan(step, optimizer.init(first), grads)[1]


def matrices(root, index=0):
    """Returns the root of one tile after each step, in float64."""
    unit, log_scale = (np.asarray(x[:, index], np.float64) for x in root)
    return np.exp(log_scale)[:, None, None] * unit


# --- against the oracle --------------------------------------------------------------


@functools.cache
def run_package(interval, grafting):
    rule, numerics = Whitening(early_refreshes=0), Numerics(roots="float64")
    optimizer = jorge(
        1.0, rule=rule, grafting=grafting, numerics=numerics, update_interval=interval
    )
    grads = {name: jnp.asarray(gradients(shape)) for name, shape in SHAPES.items()}
    steps, roots = run(optimizer, grads)
    return jax.tree.map(jnp.negative, steps), roots


def largest_error(interval, grafting="sgd", oracle=WhiteningTile):
    """Of steps and roots after each step, relative to their norms, over all shapes."""
    steps, roots = run_package(interval, grafting)
    errors = []
    for name, (m, n) in SHAPES.items():
        tile, (left, right) = oracle(m, n), (own[f"{m}x{n}"] for own in roots)
        for root, side in ((left, m), (right, n)):
            traces = np.trace(root.unit[:, 0], axis1=1, axis2=2)
            np.testing.assert_allclose(traces, side, rtol=1e-12)
        for t, g in enumerate(gradients((m, n))):
            if t % interval == 0:
                tile.refresh(g)
            step = tile.direction(g, 0.9)
            if grafting is not None:
                step = step * np.linalg.norm(tile.s) / np.linalg.norm(step)
            pairs = [(steps[name][t], step)]
            pairs += [(matrices(left)[t], tile.a), (matrices(right)[t], tile.b)]
            errors += [np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in pairs]
    return max(errors)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("grafting", ["sgd", None])
@pytest.mark.parametrize("interval", [1, 3])
def test_steps_and_roots_are_those_of_the_oracle(interval, grafting):
    assert largest_error(interval, grafting) < 1e-9


class OtherSideIgnored(WhiteningTile):
    def refresh(self, g):
        self.a, a = np.eye(len(self.a)), self.a
        b, self.b = self.b, np.eye(len(self.b))
        g = g / np.sqrt(np.sum(g**2))
        self.a = self.corrected(a, a @ g @ g.T @ a, np.sum(g**2))
        self.b = self.corrected(b, b @ g.T @ g @ b, np.sum(g**2))


class OldOrder(WhiteningTile):
    average = 0

    def direction(self, g, beta1):
        self.s = beta1 * self.s + g
        self.average = beta1 * self.average + (1 - beta1) * self.a @ g @ self.b
        return self.average


class OneFactor(WhiteningTile):
    def conjugated(self, f, root, a):
        return (f @ f @ root + root @ f @ f) * np.sqrt(1 + a) / 2


class Faster(WhiteningTile):
    beta2 = 0.89


class NoRidge(WhiteningTile):
    def ridge(self):
        return 0.0


class LengthOfAPaddedSide(WhiteningTile):
    def covariance(self, root, product, energy):
        return (1 + 1 / len(root)) * super().covariance(root, product, energy)


class TenTimes(WhiteningTile):
    def direction(self, g, beta1):
        return 10 * super().direction(g, beta1)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("other", WhiteningTile.__subclasses__())
def test_the_oracle_tells_other_rules_apart(other):
    """The negative control: the comparison detects each part of the rule."""
    assert largest_error(3, None, other) > 1e-4


# --- what it is for ------------------------------------------------------------------


def test_whitened_gradients_have_the_identity_for_their_covariance():
    rng = np.random.default_rng(1)
    left, right = (
        np.linalg.qr(rng.normal(size=(n, n)))[0] * np.geomspace(1, 0.1, n)
        for n in (12, 8)
    )
    pool = jnp.asarray(left @ rng.normal(size=(4000, 12, 8)) @ right.T, jnp.float32)
    optimizer = scale_by_jorge(rule=Whitening(beta2=0.98), update_interval=1)
    roots = run(optimizer, pool)[1]
    a, b = (matrices(own["12x8"])[-1] for own in roots)
    unit = pool / np.sqrt(np.mean(np.square(pool), (1, 2), keepdims=True))
    flat, raw = (own.reshape(4000, -1) for own in (a @ unit @ b, np.asarray(pool)))
    covariance = flat.T @ flat / 4000
    assert np.linalg.cond(raw.T @ raw) > 1e3
    assert np.linalg.cond(covariance) < 3
    assert 0.8 < np.mean(np.diag(covariance)) < 1.25


def test_one_momentum_and_the_roots_are_kept_and_no_more():
    params = {"w": jnp.zeros((6, 4)), "b": jnp.zeros(4)}

    def numbers(**options):
        state = jax.eval_shape(jorge(0.1, **options).init, params)
        return sum(x.size for x in jax.tree.leaves(state))

    roots, weights, biases, counts = (6 * 6 + 1) + (4 * 4 + 1), 6 * 4, 4, 1
    rule = Whitening()
    assert numbers(rule=rule) == roots + weights + biases + counts
    # Adam's length: a second moment, and Adam's own state for the bias.
    adam = numbers(rule=rule, grafting=lengths.Adam())
    assert adam == roots + 2 * weights + 2 * biases + 2 * counts
    # The paper's rule.
    assert numbers() == roots + 2 * weights + biases + counts


def test_a_common_scale_of_all_gradients_changes_no_root():
    optimizer = scale_by_jorge(rule=Whitening(), momentum=0.9, update_interval=2)
    grads = jnp.asarray(gradients((8, 6), 20), jnp.float32)
    steps, roots = run(optimizer, grads)
    for scale in (2.0**-60, 2.0**60):
        scaled = run(optimizer, scale * grads)
        assert jax.tree.all(jax.tree.map(np.array_equal, scaled[1], roots))
        np.testing.assert_allclose(scaled[0] / scale, steps, rtol=1e-5)
    other = run(optimizer, grads.at[0, 0].multiply(2))[1]
    assert not jax.tree.all(jax.tree.map(np.array_equal, other, roots))


def test_a_tiny_gradient_in_one_tile_does_not_make_it_large():
    """Here not even with one norm for the whole leaf."""
    grads = np.random.default_rng(10).normal(size=(60, 16, 8)).astype(np.float32)
    grads[40, :8] *= 1e-4

    def shares(rule):
        direction = scale_by_jorge(update_interval=1, tiling=Tiling(8), rule=rule)
        steps, _ = run(graft(optax.trace(0.9), direction), jnp.asarray(grads))
        norms = [np.linalg.norm(own[41:], axis=(1, 2)) for own in (steps[:, :8], steps)]
        return norms[0] / norms[1]

    assert np.all(np.abs(shares(Whitening()) - np.sqrt(0.5)) < 0.2)
    assert np.all(shares(BinomialSeries()) > 0.99)


# --- directions without gradients ----------------------------------------------------

NOISE = np.random.default_rng(8).normal(size=(64, 8, 4)).astype(np.float32)


def test_a_row_dead_for_1000_refreshes_wakes():
    grads = jnp.asarray(np.tile(NOISE, (17, 1, 1))[:1040]).at[:1000, 3].set(0)
    optimizer = scale_by_jorge(update_interval=1, rule=Whitening())
    steps, _ = run(optimizer, grads)
    assert np.isfinite(steps).all()
    rows = np.linalg.norm(np.asarray(steps[1000:], np.float64), axis=2)
    shares = rows[:, 3] / np.linalg.norm(rows, axis=1)
    # Its gradient corrects the root before it is whitened: the row that wakes leads
    # the first steps, and no longer after 20 of them.
    assert np.mean(shares[20:]) < 0.5


@pytest.mark.parametrize("beta2", [0.7, 0.9])
def test_the_root_of_a_dead_row_is_bounded(beta2):
    dead = np.geomspace(1, 0.3, 8, dtype=np.float32)[None, :, None] * NOISE
    grads = jnp.asarray(np.tile(dead, (47, 1, 1))).at[:, 3].set(0)
    optimizer = scale_by_jorge(rule=Whitening(beta2=beta2), update_interval=1)
    values = np.linalg.eigvalsh(matrices(run(optimizer, grads)[1].left["8x4"])[-1])
    ratio = largest_ratio(beta2)
    assert 0.2 * ratio < values[-1] / values[0] < ratio


@pytest.mark.parametrize("axis_aligned", [True, False])
def test_one_gradient_of_rank_one_for_5000_refreshes(axis_aligned):
    rng = np.random.default_rng(9)
    left, right = rng.normal(size=16), rng.normal(size=8)
    if axis_aligned:
        left, right = np.eye(16)[2], np.eye(8)[5]
    gradient = np.outer(left, right)
    grads = jnp.tile(jnp.asarray(gradient, jnp.float32), (5000, 1, 1))
    optimizer = scale_by_jorge(update_interval=1, rule=Whitening())
    last = np.asarray(run(optimizer, grads)[0][-1], np.float64)
    product = np.sum(last * gradient)
    assert product > 0.999 * np.linalg.norm(last) * np.linalg.norm(gradient)


# --- how it executes -----------------------------------------------------------------


@pytest.mark.usefixtures("no_compilation_cache")
def test_a_second_eager_update_compiles_nothing():
    compiled = []

    def listen(event, *_, **__):
        compiled.append(event)

    optimizer, params = jorge(0.1, rule=Whitening()), {"w": jnp.ones((6, 5))}
    jax.clear_caches()
    state = optimizer.init(params)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        counts = []
        for _ in range(3):
            _, state = optimizer.update(params, state, params)
            event = "/jax/core/compile/backend_compile_duration"
            counts.append(compiled.count(event))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert counts[0] > 0
    assert counts == 3 * counts[:1]
