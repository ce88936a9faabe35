"""Schedules: the paper's step decay in thirds, and intervals that grow."""

from __future__ import annotations

import jax.numpy as jnp
import optax


def step_decay_in_thirds(
    peak_value: float,
    total_steps: int,
    *,
    warmup_steps: int = 0,
    warmup_from: float = 0.0,
    factor: float = 0.1,
    boundaries: tuple[int, ...] | None = None,
) -> optax.Schedule:
    """The paper's schedule: a tenth after one third, a hundredth after two thirds.

    Steps are counted from the start of training, warm-up included. Step number b is
    the first one at the lower rate if b is a boundary.

    Args:
      peak_value: the learning rate before the first decay.
      total_steps: length of training; the boundaries are ``total_steps // 3`` and
        twice that.
      warmup_steps: the rate rises linearly over as many steps; step ``warmup_steps``
        is the first one at the peak.
      warmup_from: the rate at step 0 of the warm-up.
      factor: what the rate is multiplied by at each boundary.
      boundaries: the steps to decay at, where they are not thirds of the steps (the
        paper takes thirds of the *epochs*, rounded down).

    Returns:
      An optax schedule.

    Examples:
      >>> from jorge_optax import step_decay_in_thirds
      >>> schedule = step_decay_in_thirds(0.1, total_steps=90, warmup_steps=5)
      >>> [round(float(schedule(step)), 6) for step in (0, 4, 5, 29, 30, 59, 60, 89)]
      [0.0, 0.08, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    """
    if total_steps < 1:
        raise ValueError(f"total_steps must be at least 1, got {total_steps}.")
    if boundaries is None:
        boundaries = (total_steps // 3, 2 * (total_steps // 3))
    first = min(boundaries, default=total_steps)
    if not 0 <= warmup_steps <= first:
        raise ValueError(
            f"warmup_steps must lie in [0, {first}], so that the warm-up ends before "
            f"the first decay; got {warmup_steps}."
        )

    def schedule(count):
        count = jnp.asarray(count)
        passed = sum((count >= boundary).astype(jnp.int32) for boundary in boundaries)
        value = peak_value * jnp.asarray(factor, jnp.float32) ** passed
        if not warmup_steps:
            return value
        rising = warmup_from + (peak_value - warmup_from) * (count / warmup_steps)
        return jnp.where(count < warmup_steps, rising, value)

    return schedule


def growing_interval(last: int, *, first: int = 1, refreshes: int = 10):
    """An ``update_interval`` that refreshes often early and rarely later.

    The roots start as the identity and adapt slowly, a little at each refresh. This
    schedule doubles the interval after every ``refreshes`` refreshes, from ``first``
    until it reaches ``last``, and so spends about ``refreshes * log2(last / first)``
    early refreshes to have in the first steps what a constant interval ``last`` would
    have after many times as many.

    Args:
      last: the interval in the end.
      first: the interval at the start.
      refreshes: how many refreshes there are at each interval.

    Returns:
      A function of the step, for ``update_interval``.

    Examples:
      >>> from jorge_optax import growing_interval
      >>> interval = growing_interval(8, refreshes=2)
      >>> [step for step in range(40) if step % int(interval(step)) == 0]
      [0, 1, 2, 4, 6, 8, 12, 16, 24, 32]
    """
    if not 1 <= first <= last:
        raise ValueError(f"need 1 <= first <= last, got first={first}, last={last}.")
    if refreshes < 1:
        raise ValueError(f"refreshes must be at least 1, got {refreshes}.")
    # The interval doubles at multiples of the next interval, so that no refresh comes
    # sooner than the old interval after the one before.
    starts, intervals = [0], [first]
    while intervals[-1] < last:
        longer = min(2 * intervals[-1], last)
        end = starts[-1] + refreshes * intervals[-1]
        starts.append(-(-end // longer) * longer)
        intervals.append(longer)

    def interval(count):
        stage = jnp.searchsorted(jnp.asarray(starts), jnp.asarray(count), side="right")
        return jnp.asarray(intervals)[stage - 1]

    return interval
