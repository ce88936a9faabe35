"""Schedules, and the update interval that keeps a step within 10% of SGD's time."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jorge_optax._errors import NOT_NEGATIVE, check_number, check_static_count
from jorge_optax._optimizer import jorge

__all__ = (
    "IntervalChoice",
    "choose_update_interval",
    "growing_interval_schedule",
    "thirds_decay_schedule",
)
SHORTER = (
    "The learning rate decays after each third of them; for a shorter run pass another "
    "schedule, such as optax.constant_schedule."
)


def thirds_decay_schedule(
    peak_value: float | jax.Array,
    total_steps: int,
    *,
    warmup_steps: int = 0,
    warmup_from: float = 0.0,
    factor: float = 0.1,
    boundaries: tuple[int, ...] | None = None,
) -> optax.Schedule:
    """Returns the paper's schedule: a tenth after one third, a hundredth after two.

    Steps are counted from the start of training, warm-up included. A boundary is the
    first step at the lower rate.

    Args:
      peak_value: Learning rate before the first decay.
      total_steps: Length of training; the boundaries are ``total_steps // 3`` and
        twice that.
      warmup_steps: Number of steps over which the rate rises linearly; step
        ``warmup_steps`` is the first one at the peak.
      warmup_from: Learning rate at step 0 of the warm-up.
      factor: Factor that the rate is multiplied by at each boundary.
      boundaries: Steps to decay at, where they are not thirds of the steps (the paper
        takes thirds of the *epochs*, rounded down).

    Returns:
      An optax schedule.

    Examples:
      >>> from jorge_optax.tuning import thirds_decay_schedule
      >>> schedule = thirds_decay_schedule(0.1, total_steps=90, warmup_steps=5)
      >>> [round(float(schedule(step)), 6) for step in (0, 4, 5, 29, 30, 59, 60, 89)]
      [0.0, 0.08, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    """
    check_number("peak_value", peak_value, NOT_NEGATIVE)
    check_static_count("total_steps", total_steps, 3, SHORTER)
    check_static_count("warmup_steps", warmup_steps, 0)
    if boundaries is None:
        boundaries = (total_steps // 3, 2 * (total_steps // 3))
    steps = tuple(boundaries)
    first = min(steps, default=total_steps)
    if not 0 <= warmup_steps <= first:
        raise ValueError(
            f"warmup_steps must lie in [0, {first}], so that the warm-up ends before "
            f"the first decay; got {warmup_steps}."
        )

    def schedule(count: jax.typing.ArrayLike) -> jax.Array:
        count = jnp.asarray(count)
        passed = sum((count >= step).astype(jnp.int32) for step in steps)
        value = peak_value * jnp.asarray(factor, jnp.float32) ** passed
        if not warmup_steps:
            return value
        rise = warmup_from + (peak_value - warmup_from) * (count / warmup_steps)
        return jnp.where(count < warmup_steps, rise, value)

    return schedule


def growing_interval_schedule(
    last: int, *, first: int = 1, refreshes: int = 10
) -> optax.Schedule:
    """Returns an ``update_interval`` that refreshes often early and rarely later.

    The interval doubles after every ``refreshes`` refreshes, from ``first`` until it
    reaches ``last``, so that the roots adapt in far fewer steps than at a constant
    interval ``last``.

    Args:
      last: Interval at the end.
      first: Interval at the start.
      refreshes: Number of refreshes at each interval.

    Returns:
      A function of the step, for ``update_interval``.

    Examples:
      >>> from jorge_optax.tuning import growing_interval_schedule
      >>> interval = growing_interval_schedule(8, refreshes=2)
      >>> [step for step in range(40) if step % int(interval(step)) == 0]
      [0, 1, 2, 4, 6, 8, 12, 16, 24, 32]
    """
    for name, value in (("last", last), ("first", first), ("refreshes", refreshes)):
        check_static_count(name, value, 1)
    if first > last:
        raise ValueError(f"need 1 <= first <= last, got first={first}, last={last}.")
    # The interval doubles at multiples of the next interval, so that no refresh comes
    # sooner than the old interval after the one before.
    starts, intervals = [0], [first]
    while intervals[-1] < last:
        longer = min(2 * intervals[-1], last)
        end = starts[-1] + refreshes * intervals[-1]
        starts.append(-(-end // longer) * longer)
        intervals.append(longer)

    def interval(count: jax.typing.ArrayLike) -> jax.Array:
        stage = jnp.searchsorted(jnp.asarray(starts), jnp.asarray(count), side="right")
        return jnp.asarray(intervals)[stage - 1]

    return interval


@dataclasses.dataclass(frozen=True)
class IntervalChoice:
    """What :func:`choose_update_interval` found; printing it shows a sentence.

    Attributes:
      interval: Smallest interval within the tolerance. If there is none, the smallest
        at which refreshes add no more than the tolerance to steps without a refresh.
      within_tolerance: Whether a step at this interval is within the tolerance.
      sgd_seconds: Median time of SGD's step.
      plain_seconds: Median time of Jorge's step without a refresh.
      refresh_seconds: Median time of Jorge's step with a refresh.
      rounds: Number of times that each kind of step was timed.
    """

    interval: int
    within_tolerance: bool
    sgd_seconds: float
    plain_seconds: float
    refresh_seconds: float
    rounds: int

    def seconds(self, interval: int) -> float:
        """Returns the mean time of a step at an interval."""
        extra = max(self.refresh_seconds - self.plain_seconds, 0)
        return self.plain_seconds + extra / interval

    def __str__(self) -> str:
        """Returns the result in words, with the times."""
        own = self.plain_seconds, self.refresh_seconds, self.seconds(self.interval)
        plain, refresh, mean = (seconds / self.sgd_seconds for seconds in own)
        text = (
            f"SGD's step takes {1e3 * self.sgd_seconds:.2f} ms; Jorge's {plain:.3f} "
            f"times that without a refresh, {refresh:.3f} times with one, {mean:.3f} "
            f"times on average at an interval of {self.interval} (medians of "
            f"{self.rounds} rounds)."
        )
        if self.within_tolerance:
            return text
        return text + (
            " No interval is within the tolerance. Smaller tiles (Tiling(max_dim=128) "
            "or less), a lower precision and a larger batch make a step cheaper."
        )


def choose_update_interval(
    loss: Callable[..., Any] | None = None,
    params: Any = None,
    *batch: Any,
    make_step: Any = None,
    momentum: float = 0.9,
    weight_decay: float = 1e-3,
    tolerance: float = 0.1,
    max_seconds: float = 60.0,
    **options: Any,
) -> IntervalChoice:
    """Measures the smallest ``update_interval`` within a tolerance of SGD's time.

    The paper chooses the smallest interval that keeps a step within 10% of SGD's time.
    This function times SGD's step, Jorge's plain step and Jorge's step with a refresh
    in turn, round after round, so that a busy machine slows all of them alike. With
    medians s, p and r, a step at interval k takes ``p + (r - p) / k`` on average.

    Args:
      loss: Function of params and batch, which is differentiated. Pass loss, params
        and batch, or else ``make_step``.
      params: Parameters, the first argument of the loss.
      *batch: Further arguments of the loss.
      make_step: Function that makes your own training step: it takes an optimizer and
        returns a jitted ``step`` and a first ``carry``, such that
        ``carry = step(carry)`` trains one step.
      momentum: Decay rate of the momentum of SGD and of Jorge's momenta.
      weight_decay: Weight decay of Jorge; its value does not change the time.
      tolerance: Largest average slowdown of a step relative to SGD's; 0.1 is 10%.
      max_seconds: Time after which measuring stops, compilation included. At least
        three rounds are measured.
      **options: Other options of :func:`jorge_optax.jorge`, such as ``rule``.

    Returns:
      An :class:`IntervalChoice`.

    Examples:
      >>> import jax.numpy as jnp
      >>> from jorge_optax.tuning import choose_update_interval
      >>> loss = lambda params, x: jnp.mean((x @ params["w"]) ** 2)
      >>> params = {"w": jnp.ones((64, 64))}
      >>> x = jnp.ones((512, 64))
      >>> choice = choose_update_interval(loss, params, x, max_seconds=2)
      >>> choice.interval >= 1
      True
    """
    if make_step is None and loss is None:
        raise ValueError(
            "Pass either loss, params and batch, or make_step, a function from an "
            "optimizer to a jitted step and its first carry."
        )
    if tolerance <= 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}.")

    def step_from_loss(optimizer: optax.GradientTransformation) -> Any:
        @jax.jit
        def step(carry):
            # The batch is part of the carry, so that XLA does not see a constant.
            params, state, batch = carry
            grads = jax.grad(loss)(params, *batch)  # pyright: ignore
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state, batch

        return step, (params, optimizer.init(params), batch)

    def run(kind: int) -> float:
        start = time.perf_counter()
        carries[kind] = jax.block_until_ready(steps[kind](carries[kind]))
        return time.perf_counter() - start

    # At an interval of 2 the same compiled step refreshes every other time, after the
    # early refreshes of the rule.
    every_other = jorge(0.0, momentum, weight_decay, update_interval=2, **options)

    def init_late(params: Any) -> Any:
        state = every_other.init(params)
        return optax.tree_utils.tree_set(state, count=jnp.int32(2**20))

    late = optax.GradientTransformation(init_late, every_other.update)
    make = make_step or step_from_loss
    both = make(optax.sgd(0.0, momentum)), make(late)
    steps, carries = (list(own) for own in zip(*both, strict=True))
    begin, times = time.perf_counter(), []
    for _ in range(200):
        sgd, refresh, again, plain = run(0), run(1), run(0), run(1)
        times.append(((sgd + again) / 2, plain, refresh))
        if len(times) > 3 and time.perf_counter() - begin > max_seconds:
            break
    # The first round compiles.
    sgd, plain, refresh = map(float, np.median(times[1:], axis=0))
    budget = (1 + tolerance) * sgd - plain
    share = budget if budget > 0 else tolerance * sgd
    interval = max(1, math.ceil(max(refresh - plain, 0) / share - 1e-9))
    rounds = len(times) - 1
    return IntervalChoice(interval, budget > 0, sgd, plain, refresh, rounds)
