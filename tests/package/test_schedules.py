"""Schedules of rates and of intervals, and the steps at which roots are refreshed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import Whitening, jorge, tuning
from tests.helpers.trees import QUICK, normal


def test_a_decay_in_thirds_is_exact_at_its_boundaries_and_in_its_warmup():
    schedule = tuning.thirds_decay_schedule(0.4, 90, warmup_steps=5, warmup_from=0.1)
    expected = {0: 0.1, 1: 0.16, 4: 0.34, 5: 0.4, 29: 0.4, 30: 0.04, 59: 0.04}
    expected |= {60: 0.004, 89: 0.004, 10_000: 0.004}
    steps, rates = jnp.asarray([*expected]), [*expected.values()]
    for of_step in (schedule, jax.jit(schedule)):
        np.testing.assert_allclose([of_step(n) for n in steps], rates, rtol=1e-6)
    np.testing.assert_allclose(schedule(steps), rates, rtol=1e-6)
    own = tuning.thirds_decay_schedule(0.1, 90, boundaries=(7,))
    np.testing.assert_allclose(own(jnp.array([6, 7, 60])), [0.1, 0.01, 0.01])


def steps_of(interval, steps):
    return [n for n in range(steps) if n % int(interval(n)) == 0]


@pytest.mark.parametrize(("last", "first", "refreshes"), [(50, 1, 10), (64, 4, 3)])
def test_growing_interval_refreshes_often_early_and_rarely_later(
    last, first, refreshes
):
    interval = tuning.growing_interval_schedule(last, first=first, refreshes=refreshes)
    steps = steps_of(jax.jit(interval), 1000)
    gaps = np.diff(steps)
    assert gaps[0] == first == gaps.min()
    assert gaps[-1] == last == gaps.max()
    # It never shrinks, but once where `last` is no multiple of the interval before.
    assert np.sum(np.diff(gaps) < 0) <= (last == 50)
    doublings = np.log2(last / first)
    assert len(steps) < 1000 / last + (refreshes + 2) * (doublings + 2)


GROWING = tuning.growing_interval_schedule(4, refreshes=2)
LATE = [0, 4, 8, 12]
INTERVALS = {
    "a number": (4, None, LATE),
    "a traced number": (jnp.float32(4), None, LATE),
    "a schedule": (GROWING, None, steps_of(GROWING, 16)),
    "of floats": (lambda count: 4.0 + 0.1 * jnp.sin(count), None, LATE),
    "early ones": (4, Whitening(early_refreshes=6), [*range(6), 8, 12]),
    "one": (jnp.int32(1), None, [*range(16)]),
    "longer than the run": (jnp.int32(100), None, [0]),
}


@functools.cache
def refresher(interval, rule):
    """Runs 16 steps; the interval is traced, unless it is given here."""

    def run(gradients, traced):
        optimizer = jorge(0.1, update_interval=interval or traced, rule=rule)

        def step(state, gradient):
            before = optax.tree.get(state, "roots").left["4x3"].unit
            state = optimizer.update(gradient, state)[1]
            after = optax.tree.get(state, "roots").left["4x3"].unit
            return state, jnp.any(before != after)

        return jax.lax.scan(step, optimizer.init(gradients[0]), gradients)[1]

    return jax.jit(run, compiler_options=QUICK)


@pytest.mark.parametrize("name", INTERVALS)
def test_roots_are_refreshed_at_these_steps_and_at_no_other(name):
    interval, rule, expected = INTERVALS[name]
    gradients, traced = normal(0, (16, 4, 3)), isinstance(interval, jax.Array)
    run = refresher(None if traced else interval, rule)
    refreshed = run(gradients, interval if traced else 0)
    assert np.flatnonzero(refreshed).tolist() == expected
