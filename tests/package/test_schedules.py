"""Schedules of rates and intervals: the package's own, and those a config keeps."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    from_adamw,
    from_scratch,
    from_sgd,
    growing_interval_schedule,
    jorge,
    thirds_decay_schedule,
)
from jorge_optax._schedules import StepDecay


def test_schedule_is_exact_at_its_boundaries_and_in_its_warmup():
    schedule = thirds_decay_schedule(0.4, 90, warmup_steps=5, warmup_from=0.1)
    expected = {0: 0.1, 1: 0.16, 4: 0.34, 5: 0.4, 29: 0.4, 30: 0.04, 59: 0.04}
    expected |= {60: 0.004, 89: 0.004, 10_000: 0.004}
    for step, rate in expected.items():
        chex.assert_trees_all_close(float(schedule(step)), rate, rtol=1e-6)
    jitted = jax.jit(schedule)
    for step in (0, 4, 5, 29, 30, 60):
        chex.assert_trees_all_close(jitted(jnp.int32(step)), schedule(step))


def test_schedule_does_what_join_schedules_does_not():
    """optax.join_schedules restarts the count: the decay would come 5 steps late."""
    joined = optax.join_schedules(
        [optax.linear_schedule(0.0, 0.1, 5), thirds_decay_schedule(0.1, 90)], [5]
    )
    ours = thirds_decay_schedule(0.1, 90, warmup_steps=5)
    assert float(ours(30)) == pytest.approx(0.01)
    assert float(joined(30)) == pytest.approx(0.1)


def test_step_decay_rejects_nonsense():
    with pytest.raises(ValueError, match=r"warmup_steps must lie in \[0, 30\]"):
        thirds_decay_schedule(0.1, 90, warmup_steps=31)
    for total in (0, 2, 90.5):
        message = f"total_steps must be an integer of at least 3.*got {total}"
        with pytest.raises(ValueError, match=message):
            thirds_decay_schedule(0.1, total)
    with pytest.raises(TypeError, match="peak_value must be a number, got a function"):
        thirds_decay_schedule(optax.constant_schedule(0.1), 90)
    shortest = thirds_decay_schedule(0.1, 3)
    assert isinstance(shortest, StepDecay)
    assert shortest.boundaries == (1, 2)


def refresh_steps(interval, steps):
    return [step for step in range(steps) if step % int(interval(step)) == 0]


@pytest.mark.parametrize(("last", "first", "refreshes"), [(50, 1, 10), (64, 4, 3)])
def test_growing_interval_refreshes_often_early_and_rarely_later(
    last, first, refreshes
):
    interval = growing_interval_schedule(last, first=first, refreshes=refreshes)
    steps = refresh_steps(interval, 3000)
    gaps = np.diff(steps)
    assert gaps[0] == first
    assert gaps[-1] == last
    assert np.all(gaps >= first)
    assert np.all(gaps <= last)
    # It never shrinks, but once where `last` is no multiple of the interval before.
    assert np.sum(np.diff(gaps) < 0) <= (last == 50)
    doublings = np.log2(last / first)
    constant = 3000 / last
    assert len(steps) < constant + (refreshes + 2) * (doublings + 2)


def test_growing_interval_drives_the_optimizer():
    optimizer = jorge(0.1, update_interval=growing_interval_schedule(4, refreshes=2))
    state = optimizer.init(jnp.zeros((4, 3)))
    update = jax.jit(optimizer.update)
    refreshed = []
    for step in range(16):
        before = optax.tree.get(state, "roots")
        _, state = update(jax.random.normal(jax.random.key(step), (4, 3)), state)
        after = optax.tree.get(state, "roots")
        if (before["4x3"].left != after["4x3"].left).any():
            refreshed.append(step)
    assert refreshed == refresh_steps(growing_interval_schedule(4, refreshes=2), 16)


def test_growing_interval_rejects_nonsense():
    with pytest.raises(ValueError, match="1 <= first <= last"):
        growing_interval_schedule(4, first=8)
    with pytest.raises(ValueError, match="refreshes must be an integer of at least 1"):
        growing_interval_schedule(4, refreshes=0)


# The user's own schedule.

DERIVATIONS = {
    "sgd": lambda rate, **options: from_sgd(rate, 0.9, 1e-4, **options),
    "adamw": from_adamw,
}


@pytest.mark.parametrize("derive", DERIVATIONS.values(), ids=DERIVATIONS.keys())
def test_a_schedule_is_kept_and_printed_by_its_values(derive):
    schedule = optax.cosine_decay_schedule(0.1, 1000)
    config = derive(schedule)
    assert config.learning_rate is schedule
    assert config.kwargs()["learning_rate"] is schedule
    text = "a schedule: 0.1 at step 0, 0.09755 at 100, 0 at 1000"
    assert f"learning_rate    {text}\n" in str(config)
    assert json.loads(json.dumps(config.to_dict()))["learning_rate"] == text
    other = derive(optax.cosine_decay_schedule(0.1, 2000))
    assert text not in str(other)


@pytest.mark.parametrize("derive", DERIVATIONS.values(), ids=DERIVATIONS.keys())
def test_a_kept_schedule_gives_the_steps_of_jorge_called_with_it(derive):
    schedule = optax.linear_schedule(0.1, 0.0, 4)
    config = derive(schedule)
    by_hand = jorge(
        schedule,
        0.9,
        config.weight_decay,
        rule=config.rule,
        grafting=config.grafting,
    )
    thirds = config.replace(learning_rate=thirds_decay_schedule(0.1, 4)).optimizer()
    params = {"w": jnp.ones((3, 2))}
    grads = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)))}

    def last_update(tx):
        state = tx.init(params)
        for _ in range(3):
            updates, state = tx.update(grads, state, params)
        return updates

    ours = last_update(config.optimizer())
    chex.assert_trees_all_equal(ours, last_update(by_hand))
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(ours, last_update(thirds))


def test_a_replaced_rate_is_what_runs_and_what_is_printed():
    config = from_sgd(0.1, 0.9, 1e-4, total_steps=90)
    assert "0.1, times 0.1 at steps 30, 60" in str(config)
    schedule = optax.cosine_decay_schedule(0.1, 90)
    kept = config.replace(learning_rate=schedule)
    assert kept == from_sgd(schedule, 0.9, 1e-4)
    assert "times 0.1" not in str(kept)
    assert "learning_rate    0.2\n" in str(config.replace(learning_rate=0.2))
    growing = config.replace(update_interval=growing_interval_schedule(50))
    assert "update_interval  a schedule: 1 at step 0, 8 at 100, " in str(growing)


def test_from_scratch_prints_its_schedule():
    text = "cosine from 0.0425 to 0 at step 200"
    assert f"learning_rate    {text}\n" in str(from_scratch(200))
    warm = from_scratch(200, warmup_steps=20)
    assert f"learning_rate    {text}, warm-up of 20 steps\n" in str(warm)
    expected = optax.warmup_cosine_decay_schedule(0.0, 0.0425, 20, 200)
    for step in (0, 7, 20, 100, 200):
        assert warm.learning_rate(step) == expected(step)
