"""The table and the figure. Runs are grouped by optimizer, one run for each seed."""

from statistics import mean, median

from digits.training import Run
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Runs = dict[str, list[Run]]

COLORS = {"SGD": "tab:gray", "AdamW": "tab:blue", "Jorge": "tab:red"}


def first_crossing(run: Run, target: float) -> int | None:
    """Returns the first evaluated step at or above the target, None for a miss."""
    return next(
        (s for s, a in zip(run.steps, run.accuracy, strict=True) if a >= target), None
    )


def make_table(runs: Runs, compile_s: dict[str, float], target: float) -> str:
    """Formats one row for each optimizer; steps are listed seed by seed."""
    header = (
        "optimizer",
        f"steps to {target:.1%}",
        "(each seed)",
        "final accuracy",
        "ms per step",
        "compile s",
    )
    rows = [header]
    for name, seeds in runs.items():
        crossings = [first_crossing(run, target) for run in seeds]
        hits = [c for c in crossings if c is not None]
        finals = [run.accuracy[-1] for run in seeds]
        rows.append(
            (
                name,
                f"{mean(hits):.0f}" if len(hits) == len(seeds) else "not all",
                " ".join("miss" if c is None else str(c) for c in crossings),
                f"{mean(finals):.1%} ({min(finals):.1%} to {max(finals):.1%})",
                f"{median(ms for run in seeds for ms in run.step_ms):.1f}",
                f"{compile_s[name]:.1f}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def plot(runs: Runs, target: float, path: str) -> None:
    """Draws test accuracy and training loss against steps: seeds thin, mean thick."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.axhline(target, color="black", linestyle=":", label=f"target {target:.1%}")
    for row, (name, seeds) in enumerate(runs.items(), start=1):
        draw_curves(left, name, seeds, [run.accuracy for run in seeds])
        draw_curves(right, name, seeds, [run.loss for run in seeds])
        draw_crossings(left, name, seeds, target, height=target - 0.012 * row)
    left.set(
        title="Test accuracy (dots: steps at which seeds reach the target)",
        xlabel="step",
    )
    left.set(ylim=(0.8, 1.005), yticks=(0.8, 0.85, 0.9, 0.95, 1.0))
    left.yaxis.set_major_formatter("{x:.0%}")
    left.legend(loc="lower right")
    right.set(title="Training loss", xlabel="step", yscale="log")
    figure.savefig(path, dpi=150)


def draw_curves(
    axes: Axes, name: str, seeds: list[Run], curves: list[list[float]]
) -> None:
    steps = seeds[0].steps
    for curve in curves:
        axes.plot(steps, curve, color=COLORS[name], linewidth=0.6, alpha=0.35)
    average = [mean(values) for values in zip(*curves, strict=True)]
    axes.plot(steps, average, color=COLORS[name], linewidth=2, label=name)


def draw_crossings(
    axes: Axes, name: str, seeds: list[Run], target: float, height: float
) -> None:
    """Dots the steps at which seeds reached the target, in a row of their own."""
    crossings = [first_crossing(run, target) for run in seeds]
    hits = [crossing for crossing in crossings if crossing is not None]
    axes.scatter(
        hits, [height] * len(hits), color=COLORS[name], edgecolor="black", zorder=3
    )
