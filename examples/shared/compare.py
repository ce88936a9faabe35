"""Compares optimizers from the same start on the same batches: a table, a plot."""

import json
import pathlib
from collections.abc import Callable
from statistics import mean
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examples.shared import loop, optimizers, targets
from examples.shared.config import Config, Run
from examples.shared.log import Row
from examples.shared.run_folder import write_whole

SATURATED = 0.98  # metrics are at most 1
SHARE = 0.99  # of SGD's mean final metric: the target, where none is given
COLORS = {
    "sgd": "tab:gray",
    "adamw": "tab:blue",
    "shampoo": "tab:green",
    "jorge": "tab:red",
    "jorge-whitening": "tab:purple",
    "distributed-shampoo": "tab:olive",
}


class Comparison(NamedTuple):
    """Rows of the runs by optimizer, then by seed."""

    metric: str
    target: float
    runs: dict[str, list[list[Row]]]


def compare(
    make_task: Callable[[int], loop.Task],
    config: Config,
    names: list[str],
    seeds: list[int],
    folder: pathlib.Path,
    *,
    target: float | None = None,
    figure: pathlib.Path | None = None,
    **options,
) -> Comparison:
    """Runs every optimizer with every seed, or resumes it; writes table and plot.

    Args:
      make_task: Makes the task of a seed.
      config: The workload.
      names: Optimizers, by their names in `examples.shared.optimizers`.
      seeds: One run of each optimizer for each.
      folder: Where the runs, compare.json and compare.txt go.
      target: Of the task's metric; None for `SHARE` of SGD's mean at the end.
      figure: The file of the plot; None for compare.png in the folder.
      **options: Fields of every `Run`.
    """
    for name in names:
        optimizers.check_name(name)
    if target is None and "sgd" not in names:
        raise ValueError(
            f"The target is {SHARE} of what SGD reaches: add sgd to the comparison, or "
            "set the target with --target."
        )
    runs: dict[str, list[list[Row]]] = {name: [] for name in names}
    metric = ""
    for seed in seeds:
        task = make_task(seed)
        metric = task.metric
        for name in names:
            place = folder / f"{name.replace('/', '-')}-{seed}"
            rows = loop.train(task, config, Run(name, seed, place, **options))
            runs[name].append(rows)
    if target is None:
        target = SHARE * mean(_value(rows[-1], metric) for rows in runs["sgd"])
    comparison = Comparison(metric, target, runs)
    write_whole(folder / "compare.json", json.dumps(comparison._asdict()) + "\n")
    text = f"{table(comparison)}\n\n{margins(comparison)}\n"
    write_whole(folder / "compare.txt", text)
    plot(comparison, figure or folder / "compare.png")
    return comparison


def crossing(rows: list[Row], metric: str, target: float) -> Row | None:
    """Returns the first evaluation from which on all reach the target; None if none.

    A run that falls below the target again has not reached it.
    """
    index = targets.reached([row[metric] for row in rows], target)
    return None if index is None else rows[index]


def table(comparison: Comparison) -> str:
    """Formats one line for each optimizer; every seed is listed, misses included."""
    metric, target, runs = comparison
    lines = [
        (
            "optimizer",
            f"steps to {target:.4f}",
            "seconds to it",
            f"final {metric}",
            "ms per step",
            "compile s",
        )
    ]
    for name, seeds in runs.items():
        crossings = [crossing(rows, metric, target) for rows in seeds]
        finals = [_value(rows[-1], metric) for rows in seeds]
        steps, seconds = (
            " ".join("miss" if row is None else f"{row[key]:.0f}" for row in crossings)
            for key in ("step", "seconds")
        )
        cost = [1000 * rows[-1]["seconds"] / rows[-1]["step"] for rows in seeds]
        spread = f"{mean(finals):.4f} ({min(finals):.4f} to {max(finals):.4f})"
        compiling = mean(rows[-1]["compile_seconds"] for rows in seeds)
        lines.append(
            (name, steps, seconds, spread, f"{mean(cost):.1f}", f"{compiling:.1f}")
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, tuple("-" * width for width in widths))
    padded = (map(str.ljust, line, widths) for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def margins(comparison: Comparison) -> str:
    """Says by how much each optimizer ends above the first, and if seeds agree."""
    metric, _, runs = comparison
    (first, base), *others = runs.items()
    lines = []
    for name, seeds in others:
        pairs = zip(seeds, base, strict=True)
        gaps = [_value(a[-1], metric) - _value(b[-1], metric) for a, b in pairs]
        if not np.isfinite(gaps).all():
            lines.append(f"{name} or {first} diverged.")
            continue
        line = f"{name} ends {mean(gaps):+.4f} above {first}"
        if len(gaps) == 1:
            line += "; one seed does not tell that from chance: pass --seeds 0 1 2."
        else:
            line += f" on average, {min(gaps):+.4f} to {max(gaps):+.4f} by seed"
            agree = min(gaps) > 0 or max(gaps) < 0
            line += "." if agree else ": the seeds do not agree which is better."
        lines.append(line)
    ends = mean(_value(rows[-1], metric) for rows in base)
    if ends > SATURATED:
        lines.append(
            f"{first} ends at {ends:.4f}, of at most 1: little is left to tell "
            "optimizers apart."
        )
    return "\n".join(lines)


def plot(comparison: Comparison, path: pathlib.Path) -> None:
    """Draws the metric against steps and seconds; dots mark the target, met to stay."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw(left, comparison, "step")
    _draw(right, comparison, "seconds")
    handles = left.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5, fontsize="small")
    figure.savefig(path, dpi=130)


def _draw(axes: Axes, comparison: Comparison, key: str) -> None:
    metric, target, runs = comparison
    axes.axhline(target, color="black", linestyle=":", label=f"target {target:.4f}")
    for name, seeds in runs.items():
        color = COLORS[optimizers.base_name(name)]
        style = "--" if "/" in name else "-"
        curves = [_curve(rows, key, metric) for rows in seeds]
        for x, y in curves:
            axes.plot(x, y, style, color=color, linewidth=0.6, alpha=0.25)
        x, y = np.mean(curves, axis=0)  # a seed that diverged ends the line
        axes.plot(x, y, style, color=color, linewidth=1.8, label=name)
        for rows in seeds:
            if hit := crossing(rows, metric, target):
                axes.plot(hit[key], hit[metric], "o", color=color, mec="black", ms=6)
    values = [target, *_finite(runs, metric, -1)]
    low, high = min(values), max(values)
    margin = max(high - low, 0.02 * abs(target))
    lowest = min([low, *_finite(runs, metric, 0)])
    axes.set_ylim(max(low - 1.5 * margin, lowest), high + 0.2 * margin)
    axes.set(
        xlabel=key,
        ylabel=metric,
        title=f"{metric}: seeds thin, mean thick; dots: target met",
    )


def _curve(rows: list[Row], key: str, metric: str) -> np.ndarray:
    """Returns the curve of a run, [2, evaluations]; NaN where it diverged."""
    return np.array([[row[key] for row in rows], [row[metric] for row in rows]], float)


def _finite(runs: dict[str, list[list[Row]]], metric: str, index: int) -> list[float]:
    """Returns the metric of one row of each run that did not diverge."""
    values = (rows[index][metric] for seeds in runs.values() for rows in seeds)
    return [value for value in values if value is not None]


def _value(row: Row, metric: str) -> float:
    value = row[metric]
    return float("-inf") if value is None else value
