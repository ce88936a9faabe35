"""Whitening: roots corrected by the gradient that they have whitened."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import Numerics, Whitening, jorge, scale_by_jorge
from jorge_optax._whitening import largest_ratio
from tests.helpers.trees import QUICK
from tests.helpers.whitening_oracle import WhiteningTile

SHAPES = {"tall": (7, 5), "wide": (4, 9), "two by two": (2, 2), "very tall": (12, 3)}
STEPS = 25


def gradients(shape, steps=STEPS, seed=0):
    """Of different sizes, which the roots must not see."""
    rng = np.random.default_rng(seed)
    noise, sizes = rng.normal(size=(steps, *shape)), rng.normal(size=(steps, 1, 1))
    return noise * np.exp(sizes)


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
    unit, scale = (np.asarray(x[:, index], np.float64) for x in root)
    return scale[:, None, None] * unit


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


NOISE = np.random.default_rng(8).normal(size=(64, 8, 4)).astype(np.float32)


@pytest.mark.parametrize("beta2", [0.7, 0.9])
def test_the_root_of_a_dead_row_is_bounded(beta2):
    dead = np.geomspace(1, 0.3, 8, dtype=np.float32)[None, :, None] * NOISE
    grads = jnp.asarray(np.tile(dead, (47, 1, 1))).at[:, 3].set(0)
    optimizer = scale_by_jorge(rule=Whitening(beta2=beta2), update_interval=1)
    values = np.linalg.eigvalsh(matrices(run(optimizer, grads)[1].left["8x4"])[-1])
    ratio = largest_ratio(beta2)
    assert 0.2 * ratio < values[-1] / values[0] < ratio


def test_a_row_dead_for_1000_refreshes_wakes():
    grads = jnp.asarray(np.tile(NOISE, (17, 1, 1))[:1040]).at[:1000, 3].set(0)
    optimizer = scale_by_jorge(update_interval=1, rule=Whitening())
    rows = np.linalg.norm(run(optimizer, grads)[0][1000:], axis=2)
    shares = rows[:, 3] / np.linalg.norm(rows, axis=1)
    # The row that wakes leads the first steps, and no longer after 20 of them.
    assert np.mean(shares[20:]) < 0.5


def test_one_gradient_of_rank_one_for_5000_refreshes():
    """Without the ridge errors grow, and the direction turns away (docs)."""
    rng = np.random.default_rng(9)
    gradient = np.outer(rng.normal(size=16), rng.normal(size=8))
    grads = jnp.tile(jnp.asarray(gradient, jnp.float32), (5000, 1, 1))
    optimizer = scale_by_jorge(update_interval=1, rule=Whitening())
    last = np.asarray(run(optimizer, grads)[0][-1], np.float64)
    product = np.sum(last * gradient)
    assert product > 0.999 * np.linalg.norm(last) * np.linalg.norm(gradient)


def test_scales_of_the_two_sides_do_not_drift_apart():
    """Only their product matters; on their own, they part by percents a refresh."""
    optimizer = scale_by_jorge(rule=Whitening(), update_interval=1)
    grads = jnp.asarray(gradients((24, 3), 400), jnp.float32)
    _, (left, right) = run(optimizer, grads)
    (left,), (right,) = left["24x3"].scale[-1], right["24x3"].scale[-1]
    np.testing.assert_allclose(left / right, 1, atol=0.2)
    np.testing.assert_allclose(left * right, 1, atol=0.9)


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
