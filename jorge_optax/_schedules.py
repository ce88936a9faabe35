"""Schedules: the paper's step decay in thirds, and growing intervals."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax

from jorge_optax._checks import check_count, check_not_negative


@dataclasses.dataclass(frozen=True)
class StepDecay:
    """A learning rate that is multiplied by a factor at given steps.

    Attributes:
      peak_value: Learning rate before the first decay.
      boundaries: Steps at which the learning rate decays.
      warmup_steps: Number of steps over which the learning rate rises linearly.
      warmup_from: Learning rate at step 0 of the warm-up.
      factor: Factor that the learning rate is multiplied by at each boundary.
    """

    peak_value: float
    boundaries: tuple[int, ...]
    warmup_steps: int = 0
    warmup_from: float = 0.0
    factor: float = 0.1

    def __call__(self, count: jax.typing.ArrayLike) -> jax.Array:
        """Returns the learning rate at a step."""
        count = jnp.asarray(count)
        passed = sum((count >= step).astype(jnp.int32) for step in self.boundaries)
        value = self.peak_value * jnp.asarray(self.factor, jnp.float32) ** passed
        if not self.warmup_steps:
            return value
        rise = (self.peak_value - self.warmup_from) * (count / self.warmup_steps)
        return jnp.where(count < self.warmup_steps, self.warmup_from + rise, value)

    def __str__(self) -> str:
        """Returns the schedule in words."""
        steps = ", ".join(map(str, self.boundaries))
        text = f"{self.peak_value:g}, times {self.factor:g} at steps {steps}"
        return text + _warmup_text(self.warmup_steps)


@dataclasses.dataclass(frozen=True)
class CosineDecay:
    """A learning rate that falls to zero by a cosine, after a linear warm-up.

    Attributes:
      peak_value: Learning rate after the warm-up.
      total_steps: First step with a learning rate of zero.
      warmup_steps: Number of steps over which the learning rate rises from zero.
    """

    peak_value: float
    total_steps: int
    warmup_steps: int = 0

    def __call__(self, count: jax.typing.ArrayLike) -> jax.typing.ArrayLike:
        """Returns the learning rate at a step."""
        start = 0.0 if self.warmup_steps else self.peak_value
        schedule = optax.warmup_cosine_decay_schedule(
            start, self.peak_value, self.warmup_steps, self.total_steps
        )
        return schedule(count)

    def __str__(self) -> str:
        """Returns the schedule in words."""
        text = f"cosine from {self.peak_value:g} to 0 at step {self.total_steps}"
        return text + _warmup_text(self.warmup_steps)


def _warmup_text(steps: int) -> str:
    return f", warm-up of {steps} steps" if steps else ""


def schedule_text(schedule: optax.Schedule) -> str:
    """Returns a schedule in words, or a few of its values if it has none."""
    if isinstance(schedule, StepDecay | CosineDecay):
        return str(schedule)
    values = {
        step: f"{float(jnp.asarray(schedule(jnp.asarray(step, jnp.int32)))):.4g}"
        for step in (0, 100, 1000, 10_000)
    }
    steps = list(values)
    while len(steps) > 1 and values[steps[-1]] == values[steps[-2]]:
        steps.pop()  # from here on it stays as it is
    texts = [f"{values[step]} at {step}" for step in steps]
    return f"a schedule: {', '.join(texts)}".replace(" at 0", " at step 0", 1)


def thirds_decay_schedule(
    peak_value: float,
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
      >>> from jorge_optax import thirds_decay_schedule
      >>> schedule = thirds_decay_schedule(0.1, total_steps=90, warmup_steps=5)
      >>> [round(float(schedule(step)), 6) for step in (0, 4, 5, 29, 30, 59, 60, 89)]
      [0.0, 0.08, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    """
    check_not_negative("peak_value", peak_value)
    thirds = (
        "The learning rate decays after each third of them; for a shorter run pass "
        "another schedule, such as optax.constant_schedule."
    )
    check_count("total_steps", total_steps, 3, remedy=thirds)
    check_count("warmup_steps", warmup_steps, 0)
    if boundaries is None:
        boundaries = (total_steps // 3, 2 * (total_steps // 3))
    first = min(boundaries, default=total_steps)
    if not 0 <= warmup_steps <= first:
        raise ValueError(
            f"warmup_steps must lie in [0, {first}], so that the warm-up ends before "
            f"the first decay; got {warmup_steps}."
        )
    return StepDecay(peak_value, tuple(boundaries), warmup_steps, warmup_from, factor)


def growing_interval_schedule(
    last: int, *, first: int = 1, refreshes: int = 10
) -> optax.Schedule:
    """Returns an ``update_interval`` that refreshes often early and rarely later.

    The roots start as a multiple of the identity and adapt a little at each refresh.
    This schedule doubles the interval after every ``refreshes`` refreshes, from
    ``first`` until it reaches ``last``. It spends about
    ``refreshes * log2(last / first)`` early refreshes, so that the roots adapt in far
    fewer steps than at a constant interval ``last``.

    Args:
      last: Interval at the end.
      first: Interval at the start.
      refreshes: Number of refreshes at each interval.

    Returns:
      A function of the step, for ``update_interval``.

    Examples:
      >>> from jorge_optax import growing_interval_schedule
      >>> interval = growing_interval_schedule(8, refreshes=2)
      >>> [step for step in range(40) if step % int(interval(step)) == 0]
      [0, 1, 2, 4, 6, 8, 12, 16, 24, 32]
    """
    for name, value in (("last", last), ("first", first), ("refreshes", refreshes)):
        check_count(name, value, 1)
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

    def interval(count):
        stage = jnp.searchsorted(jnp.asarray(starts), jnp.asarray(count), side="right")
        return jnp.asarray(intervals)[stage - 1]

    return interval


def thirds_of(
    learning_rate: float,
    total_steps: int | None,
    epochs: int | None,
    steps_per_epoch: int | None,
    warmup_steps: int | None,
) -> optax.Schedule:
    """Returns step decay in thirds of the steps, or of whole epochs."""
    boundaries = None
    if total_steps is None and epochs is not None and steps_per_epoch is not None:
        instead = "Pass total_steps instead to count thirds in steps."
        check_count("epochs", epochs, 3, remedy=instead)
        whole = "Round it: len(data) // batch_size, if the last batch is dropped."
        check_count("steps_per_epoch", steps_per_epoch, 1, remedy=whole)
        third = epochs // 3 * steps_per_epoch
        boundaries = (third, 2 * third)
        total_steps = epochs * steps_per_epoch
    elif total_steps is None or epochs is not None or steps_per_epoch is not None:
        raise ValueError(
            "Pass the length of training, either as total_steps or as epochs and "
            f"steps_per_epoch: got total_steps={total_steps}, epochs={epochs}, "
            f"steps_per_epoch={steps_per_epoch}. The learning rate decays at its "
            "thirds. To have another schedule, pass it as learning_rate; "
            "optax.constant_schedule keeps a number."
        )
    return thirds_decay_schedule(
        learning_rate,
        total_steps,
        warmup_steps=warmup_steps or 0,
        boundaries=boundaries,
    )
