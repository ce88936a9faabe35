"""The table and the figure. Runs are grouped by optimizer, one run for each seed."""

from statistics import mean, median

import matplotlib.pyplot as plt

from digits.training import Run

Runs = dict[str, list[Run]]

COLORS = {"SGD": "tab:gray", "AdamW": "tab:blue", "Jorge": "tab:red"}


def first_crossing(run: Run, target: float) -> int | None:
    """Returns the first evaluated step at or above the target, None for a miss."""
    return next(
        (s for s, a in zip(run.steps, run.accuracy, strict=True) if a >= target), None
    )


def make_table(runs: Runs, target: float) -> str:
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
                f"{median(run.compile_s for run in seeds):.1f}",
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
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for name, seeds in runs.items():
        draw_curves(left, name, seeds, [run.accuracy for run in seeds])
        draw_curves(right, name, seeds, [run.loss for run in seeds])
        crossings = [c for run in seeds if (c := first_crossing(run, target))]
        left.plot(
            crossings, [target] * len(crossings), "o", color=COLORS[name], zorder=3
        )
    left.axhline(target, color="black", linestyle=":", linewidth=1)
    left.annotate(
        f"target {target:.1%}; dots: where each seed first reached it",
        (0.99, target),
        xycoords=("axes fraction", "data"),
        xytext=(0, -14),
        textcoords="offset points",
        ha="right",
    )
    left.set(title="Test accuracy", xlabel="step", ylim=(0.8, 1.002))
    left.yaxis.set_major_formatter("{x:.0%}")
    left.legend(loc="lower right")
    right.set(title="Training loss", xlabel="step", yscale="log")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_curves(axes, name: str, seeds: list[Run], curves: list[list[float]]) -> None:
    steps = seeds[0].steps
    for curve in curves:
        axes.plot(steps, curve, color=COLORS[name], linewidth=0.6, alpha=0.35)
    average = [mean(values) for values in zip(*curves, strict=True)]
    axes.plot(steps, average, color=COLORS[name], linewidth=2, label=name)
