"""The README's picture of the two rules, from the committed JSON alone.

python -m benchmarks.rule_plot
"""

import pathlib

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from benchmarks import results
from benchmarks.numerics.plots import STYLE

FILE = pathlib.Path(__file__).parent.parent / "docs" / "images" / "composite.png"
RULES = {"paper": "#222222", "composite": "#c1272d"}
LABELS = {"paper": 0.55, "composite": 0.98}  # where the names stand
CURVES = {
    "sgd": ("SGD", "#b8860b", "--"),
    "paper@{}/sgd-rate": ("Jorge, paper's rule", "#222222", "-"),
    "composite@{}/sgd-rate": ("Jorge, composite rule", "#c1272d", "-"),
    "shampoo@{}/sgd-rate": ("Shampoo, exact roots", "#0072b2", ":"),
}


def directions(axis) -> None:
    """Cosine to exact Shampoo on all recorded layers."""
    rows = [
        row
        for row in results.read("numerics_accuracy")["rows"]
        if row["arithmetic"] == "float32" and row["kind"] != "synthetic"
    ]
    for rule, color in RULES.items():
        own = [row for row in rows if row["rule"] == rule]
        cosines = np.array([row["cosine"] for row in own], float)
        x = own[0]["refreshes"]
        axis.plot(x, np.median(cosines, 0), color=color, linewidth=2)
        axis.fill_between(
            x, cosines.min(0), cosines.max(0), color=color, alpha=0.15, linewidth=0
        )
        axis.text(1, LABELS[rule], f"{rule} rule", color=color, va="top")
    axis.set(
        xscale="log",
        ylim=(0, 1.02),
        xlabel="refreshes",
        ylabel="cosine to Shampoo's direction",
        title=f"The direction, {len(own)} recorded layers\n(median, and all of them)",
    )


def training(axis, interval: int) -> None:
    """Metric of the MLP against steps, mean of the seeds."""
    data = results.read("training_mlp")
    facts = data["provenance"]
    steps = facts["steps"] // 100 * np.arange(1, 101)
    for name, (label, color, dash) in CURVES.items():
        wanted = {"stage": "final", "optimizer": name.format(interval)}
        curves = [r["curve"] for r in data["rows"] if wanted.items() <= r.items()]
        values = np.array(curves, float)
        axis.plot(steps, values.mean(0), dash, color=color, label=label)
    axis.axhline(facts["target"], color="grey", linewidth=0.8)
    axis.text(0, facts["target"], "target", va="bottom", color="grey")
    axis.set(
        xlabel="steps",
        ylabel=facts["metric"],
        ylim=(0.76, 0.885),
        title=f"MLP, a refresh every {interval} steps\n(Fashion-MNIST, mean of 5)",
    )


def main() -> None:
    """Draws it."""
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(12, 3.9), layout="constrained")
        directions(axes[0])
        training(axes[1], 10)
        training(axes[2], 50)
        axes[1].legend(frameon=False, loc="lower right")
        figure.savefig(FILE, dpi=110)


if __name__ == "__main__":
    main()
