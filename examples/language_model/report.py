"""The table and the plot of a comparison."""

from statistics import mean

import numpy as np
from matplotlib.figure import Figure

from examples.language_model.train import Curve
from examples.shared import targets

Runs = dict[str, list[Curve]]  # optimizer to a curve for each seed
BASELINE, OURS = "adamw", "jorge-whitening"
COLORS = {
    "adamw": "tab:blue",
    "muon": "tab:green",
    "jorge": "tab:red",
    "jorge-whitening": "tab:purple",
}
LABELS = {
    "adamw": "AdamW, tuned",
    "muon": "Muon, tuned",
    "jorge": "Jorge, paper's rule",
    "jorge-whitening": "Jorge, whitening",
}


def finals(runs: Runs) -> dict[str, list[float]]:
    """Returns the last losses, by seed."""
    return {name: [curve[-1][1] for curve in curves] for name, curves in runs.items()}


def reached(curve: Curve, target: float) -> int | None:
    """Returns the first step from which the loss stays at the target or below."""
    losses = [loss for _, loss in curve]
    index = targets.reached(losses, target, larger_is_better=False)
    return None if index is None else curve[index][0]


def table(runs: Runs) -> str:
    """Formats one line for each optimizer, with every seed; misses included."""
    last = finals(runs)
    target = mean(last[BASELINE])
    lines = [
        (
            "optimizer",
            "loss at the end, mean (lowest to highest)",
            f"steps until it stays below {target:.3f}, {BASELINE}'s mean, by seed",
        )
    ]
    for name, curves in runs.items():
        steps = [reached(curve, target) for curve in curves]
        low, high = min(last[name]), max(last[name])
        lines.append(
            (
                name,
                f"{mean(last[name]):.3f} ({low:.3f} to {high:.3f})",
                ", ".join("never" if step is None else str(step) for step in steps),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, tuple("-" * width for width in widths))
    padded = (map(str.ljust, line, widths) for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def margins(runs: Runs) -> str:
    """Says how far apart the optimizers end, seed by seed, and the seeds of each."""
    last = finals(runs)
    lines = []
    for name, losses in last.items():
        if name == OURS:
            continue
        gaps = [other - own for other, own in zip(losses, last[OURS], strict=True)]
        side = "below" if mean(gaps) >= 0 else "above"
        sign = 1 if side == "below" else -1
        lines.append(
            f"{OURS} ends {abs(mean(gaps)):.3f} nats {side} {name} "
            f"({min(sign * g for g in gaps):.3f} to "
            f"{max(sign * g for g in gaps):.3f} by seed)."
        )
    spread = max(max(losses) - min(losses) for losses in last.values())
    lines.append(f"The seeds of one optimizer differ by at most {spread:.3f}.")
    return "\n".join(lines)


def figure(runs: Runs) -> Figure:
    """Draws the loss against steps: seeds thin, their mean thick and named."""
    figure = Figure(figsize=(8, 4.6))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.09, right=0.74, bottom=0.12, top=0.9)
    ends = {}
    for name, curves in runs.items():
        for curve in curves:
            axes.plot(*zip(*curve, strict=True), color=COLORS[name], lw=0.6, alpha=0.4)
        steps, losses = np.mean(curves, axis=0).T
        axes.plot(steps, losses, color=COLORS[name], lw=2)
        ends[name] = losses[-1]
    low, high = axes.get_ylim()
    right = max(curve[-1][0] for curves in runs.values() for curve in curves)
    below = -np.inf
    for name in sorted(ends, key=lambda name: ends[name]):
        below = max(ends[name], below + 0.055 * (high - low))
        axes.annotate(
            f"{LABELS[name]}: {ends[name]:.3f}",
            (right, ends[name]),
            (1.05 * right, below),
            color=COLORS[name],
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": COLORS[name], "lw": 0.6},
        )
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(
        xlabel="step",
        ylabel="validation loss, nats a byte",
        title="A small transformer on the bytes of Python's own sources",
    )
    return figure
