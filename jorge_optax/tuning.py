"""Measures the smallest update interval within 10% of SGD's time per step."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from jorge_optax._optimizer import jorge

__all__ = ("IntervalChoice", "choose_update_interval")


@dataclasses.dataclass(frozen=True, repr=False)
class IntervalChoice:
    """What :func:`choose_update_interval` found; printing it shows the table.

    Attributes:
      interval: Smallest interval within the tolerance. If there is none, the smallest
        at which refreshes add no more than the tolerance to steps without a refresh.
      within_tolerance: Whether a step at this interval is within the tolerance.
      tolerance: Largest average slowdown of a step relative to SGD's; 0.1 is 10%.
      sgd_seconds: Median time of SGD's step.
      plain_seconds: Median time of Jorge's step without a refresh.
      refresh_seconds: Median time of Jorge's step with a refresh.
      low: Lower end of the 95% bootstrap confidence interval of ``interval``.
      high: Upper end of that confidence interval. Either end is ``None`` where no
        interval is within the tolerance.
      rounds: Number of times that each kind of step was timed.
      sentence: The result in words.
    """

    interval: int
    within_tolerance: bool
    tolerance: float
    sgd_seconds: float
    plain_seconds: float
    refresh_seconds: float
    low: int | None
    high: int | None
    rounds: int
    sentence: str

    def table(self) -> list[tuple[int, float, float]]:
        """Returns rows of interval, mean seconds per step, and their ratio to SGD's."""
        intervals = {1, 2, 5, 10, 20, 50, 100}
        intervals |= {max(self.interval - 1, 1), self.interval}
        rows = []
        for k in sorted(intervals):
            extra = max(self.refresh_seconds - self.plain_seconds, 0) / k
            seconds = self.plain_seconds + extra
            rows.append((k, seconds, seconds / self.sgd_seconds))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Returns numbers, lists and strings only, ready for JSON."""
        return {**dataclasses.asdict(self), "table": [list(r) for r in self.table()]}

    def __repr__(self) -> str:
        """Returns the table and the sentence."""
        lines = [
            "step            ms      over SGD",
            f"SGD       {1e3 * self.sgd_seconds:8.2f}",
        ]
        kinds = ("plain", self.plain_seconds), ("refresh", self.refresh_seconds)
        for name, seconds in kinds:
            ratio = seconds / self.sgd_seconds
            lines.append(f"{name:<9} {1e3 * seconds:8.2f}      {ratio:8.3f}")
        for k, seconds, ratio in self.table():
            mark = " <-" if k == self.interval else ""
            lines.append(f"every {k:<4}{1e3 * seconds:8.2f}      {ratio:8.3f}{mark}")
        return "\n".join([*lines, self.sentence])


def choose_update_interval(
    loss: Callable[..., Any] | None = None,
    params: Any = None,
    *batch: Any,
    make_step: Any = None,
    momentum: float = 0.9,
    weight_decay: float = 1e-3,
    tolerance: float = 0.1,
    max_seconds: float = 60.0,
    progress: bool = True,
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
      progress: Whether to show a progress bar on the standard error stream, or one
        line where that stream is not a terminal.
      **options: Other options of :func:`jorge_optax.jorge`, such as ``tiling`` and
        ``precision``.

    Returns:
      An :class:`IntervalChoice`: the interval, the table behind it and a sentence.

    Examples:
      >>> import jax.numpy as jnp
      >>> from jorge_optax.tuning import choose_update_interval
      >>> loss = lambda params, x: jnp.mean((x @ params["w"]) ** 2)
      >>> params = {"w": jnp.ones((64, 64))}
      >>> choice = choose_update_interval(
      ...   loss, params, jnp.ones((512, 64)), max_seconds=2, progress=False
      ... )
      >>> choice.interval >= 1
      True
    """
    if make_step is None:
        if loss is None:
            raise ValueError(
                "Pass either loss, params and batch, or make_step, a function from an "
                "optimizer to a jitted step and its first carry."
            )
        make_step = _step_from_loss(loss, params, batch)
    if tolerance <= 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}.")
    bar = _Bar(max_seconds if progress else None)
    start = time.perf_counter()

    # At an interval of 2 the same compiled step refreshes every other time. Staggered
    # refreshes cost the same on average.
    options = {**options, "stagger": False}
    rule = options.get("rule")
    if getattr(rule, "early_refreshes", 0) and dataclasses.is_dataclass(rule):
        # They would refresh at each step that is timed.
        changed: Any = rule
        options["rule"] = dataclasses.replace(changed, early_refreshes=0)
    every_other = jorge(0.0, momentum, weight_decay, update_interval=2, **options)
    sgd_step, sgd_carry = make_step(optax.sgd(0.0, momentum))
    jorge_step, jorge_carry = make_step(every_other)
    times, elapsed = [], 0.0
    for round_number in range(10_000):
        sgd_carry, sgd = _timed(sgd_step, sgd_carry)
        jorge_carry, refresh = _timed(jorge_step, jorge_carry)
        sgd_carry, sgd_again = _timed(sgd_step, sgd_carry)
        jorge_carry, plain = _timed(jorge_step, jorge_carry)
        elapsed = time.perf_counter() - start
        bar.show(elapsed)
        if round_number:  # the first one compiles
            times.append(((sgd + sgd_again) / 2, plain, refresh))
        if len(times) >= 3 and (elapsed > max_seconds or len(times) >= 200):
            break
    bar.close(elapsed, len(times))
    return _choose(np.array(times), tolerance)


def _choose(times: np.ndarray, tolerance: float) -> IntervalChoice:
    """Computes the choice from rounds of (SGD, plain, refresh) seconds."""

    def smallest(sample: np.ndarray) -> float:
        sgd, plain, refresh = np.median(sample, axis=0)
        budget = (1 + tolerance) * sgd - plain
        if budget <= 0:
            return math.inf
        return max(1, math.ceil(max(refresh - plain, 0) / budget - 1e-9))

    best = smallest(times)
    rng = np.random.default_rng(0)
    resampled = [
        smallest(times[rng.integers(len(times), size=len(times))]) for _ in range(500)
    ]
    low, high = (
        None if math.isinf(value) else int(value)
        for value in np.quantile(resampled, (0.025, 0.975), method="nearest")
    )
    sgd, plain, refresh = (float(value) for value in np.median(times, axis=0))
    percent = f"{tolerance:.0%}"
    within = not math.isinf(best)
    if not within:
        best = max(1, math.ceil(max(refresh - plain, 0) / (tolerance * sgd) - 1e-9))
        sentence = (
            f"No interval brings Jorge within {percent} of SGD: a step without any "
            f"refresh already takes {plain / sgd:.2f} of SGD's time. Refresh every "
            f"{best} steps: refreshes then add no more than {percent}. Smaller tiles "
            "(Tiling(max_dim=128) or less) cost less at every step, and so do a lower "
            "precision ('high' or 'default', on a GPU) and a larger batch, whose "
            "gradient then takes more of the time."
        )
    else:
        upper = "no interval at all" if high is None else str(high)
        sentence = (
            f"Refresh every {best:g} steps: that keeps a step within {percent} of "
            f"SGD's time. From {len(times)} rounds, 95% of resamplings say "
            f"{low if low is not None else 'no interval at all'} to {upper}."
        )
    return IntervalChoice(
        interval=int(best),
        within_tolerance=within,
        tolerance=tolerance,
        sgd_seconds=sgd,
        plain_seconds=plain,
        refresh_seconds=refresh,
        low=low,
        high=high,
        rounds=len(times),
        sentence=sentence,
    )


def _step_from_loss(loss: Callable[..., Any], params: Any, batch: tuple) -> Any:
    def make_step(optimizer):
        @jax.jit
        def step(carry):
            # The batch is part of the carry, so that XLA does not see a constant.
            params, state, batch = carry
            grads = jax.grad(loss)(params, *batch)
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state, batch

        return step, (params, optimizer.init(params), batch)

    return make_step


def _timed(step: Callable[[Any], Any], carry: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    carry = jax.block_until_ready(step(carry))
    return carry, time.perf_counter() - start


class _Bar:
    """A progress bar on the standard error stream; in a log file, one line."""

    def __init__(self, seconds: float | None):
        self.seconds = seconds
        self.redraws = sys.stderr.isatty()
        if seconds is not None and not self.redraws:
            sys.stderr.write(f"choosing the interval, in about {seconds:.0f} s ... ")
            sys.stderr.flush()

    def show(self, elapsed: float) -> None:
        if self.seconds is not None and self.redraws:
            share = min(elapsed / self.seconds, 1)
            bar = "#" * round(30 * share)
            sys.stderr.write(f"\rchoosing the interval [{bar:<30}] {elapsed:4.0f} s")
            sys.stderr.flush()

    def close(self, elapsed: float, rounds: int) -> None:
        if self.seconds is not None:
            done = "" if self.redraws else f"{rounds} rounds in {elapsed:.0f} s"
            sys.stderr.write(f"{done}\n")
