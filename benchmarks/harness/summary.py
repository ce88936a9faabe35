"""Counts steps to a target, and their ratios paired by seed."""

import math

import numpy as np
import scipy.stats

from examples.shared import targets

Steps = dict[int, int | None]


def steps_to(
    target: float, curve: list[float | None], *, larger_is_better: bool, every: int
) -> int | None:
    """Returns the first evaluated step from which on all reach the target, or None."""
    index = targets.reached(curve, target, larger_is_better=larger_is_better)
    return None if index is None else (index + 1) * every


def paired_ratio(ours: Steps, theirs: Steps) -> str:
    """Geometric mean and 95% interval over the seeds where both reach the target.

    The other seeds are unpaired: either side, or both, missed the target.
    """
    seeds = [seed for seed in ours if ours[seed] and theirs.get(seed)]
    missing = len(set(ours) | set(theirs)) - len(seeds)
    note = f", {missing} of {missing + len(seeds)} seeds unpaired" if missing else ""
    if len(seeds) < 2:
        return f"too few{note}"
    logs = np.log([ours[seed] / theirs[seed] for seed in seeds])
    spread = scipy.stats.t.ppf(0.975, len(logs) - 1) * scipy.stats.sem(logs)
    low, middle, high = np.exp(logs.mean() + spread * np.array([-1, 0, 1]))
    if not math.isfinite(low):
        low = high = middle  # all equal
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]{note}"
