"""When a run has reached a target: where it stays there."""

import math
from collections.abc import Sequence


def reached(
    values: Sequence[float | None], target: float, *, larger_is_better: bool = True
) -> int | None:
    """Returns the index of the first value from which on all reach the target.

    A run that falls behind the target again has not reached it.

    Args:
      values: The metric at each evaluation; None or NaN where the run had diverged.
      target: What to reach; equal is enough.
      larger_is_better: False for a loss.

    Returns:
      The index; None if the last value misses the target.
    """
    sign = 1 if larger_is_better else -1
    stays = None
    for index in reversed(range(len(values))):
        value = values[index]
        if value is None or math.isnan(value) or sign * value < sign * target:
            break
        stays = index
    return stays
