"""Searches the best learning rate on the ladder 0.1, 0.2, 0.5, 1, 2, 5, ..."""

import math
from collections.abc import Callable

BY_SHAPE = 0.0425  # the default of from_scratch


def rate_of(rung: int) -> float:
    """Returns the learning rate of a rung; rung 0 is 1."""
    return float(f"{(1, 2, 5)[rung % 3]}e{rung // 3}")


def rung_of(rate: float) -> int:
    """Returns the rung of a learning rate."""
    return round(3 * math.log10(rate))


def around(middle: float, beside: int) -> set[int]:
    """Returns the rung of a rate and some rungs on either side."""
    rung = rung_of(middle)
    return set(range(rung - beside, rung + beside + 1))


def search(
    tried: dict[str, set[int]],
    run: Callable[[str, float], None],
    best: Callable[[str], float],
    *,
    beyond: int = 1,
    widen: bool = True,
) -> None:
    """Adds rates until no best one is at an edge and all families tried equally many.

    Args:
      tried: rungs to begin with, by family; grows.
      run: one run of a family at a rate; called again for those that are done.
      best: the best rate of a family, of those that ran.
      beyond: rungs to add where the best is at an edge.
      widen: whether to add any.
    """
    while True:
        for family, rungs in tried.items():
            for rung in sorted(rungs):
                run(family, rate_of(rung))
        if not widen:
            return
        most = max(map(len, tried.values()))
        settled = True
        for family, rungs in tried.items():
            rung, low, high = rung_of(best(family)), min(rungs), max(rungs)
            if rung == low:
                rungs |= set(range(low - beyond, low))
            elif rung == high:
                rungs |= set(range(high + 1, high + beyond + 1))
            elif len(rungs) < most:
                rungs.add(low - 1 if rung - low < high - rung else high + 1)
            else:
                continue
            settled = False
        if settled:
            return
