"""Draws the figure of docs/composite.md, from the committed JSON alone."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness import results

INTERVALS = (10, 50)
RULES = {"paper": "#222222", "composite": "#c1272d"}
LABELS = {"paper": 0.55, "composite": 0.98}  # heights of the names
CURVES = {
    "sgd": ("SGD", "#b8860b", "--"),
    "paper@{}/sgd-rate": ("Jorge, paper's rule", "#222222", "-"),
    "composite@{}/sgd-rate": ("Jorge, composite rule", "#c1272d", "-"),
    "shampoo@{}/sgd-rate": ("Shampoo, exact roots", "#0072b2", ":"),
}


def data() -> dict[str, Any]:
    """Returns the data of the figure."""
    return {
        "directions": {rule: _directions(rule) for rule in RULES},
        "training": {str(interval): _training(interval) for interval in INTERVALS},
    }


def _directions(rule: str) -> dict[str, Any]:
    """Cosines to exact Shampoo on all recorded layers."""
    rows = [
        row
        for row in results.read("numerics_accuracy")["rows"]
        if row["arithmetic"] == "float32" and row["kind"] != "synthetic"
    ]
    own = [row for row in rows if row["rule"] == rule]
    cosines = np.array([row["cosine"] for row in own], float)
    return {
        "layers": len(own),
        "refreshes": own[0]["refreshes"],
        "median": np.median(cosines, 0).tolist(),
        "least": cosines.min(0).tolist(),
        "largest": cosines.max(0).tolist(),
    }


def _training(interval: int) -> dict[str, Any]:
    """Metric of the MLP, mean of the seeds."""
    found = results.read("training_mlp")
    facts = found["provenance"]
    curves = {}
    for name in CURVES:
        wanted = {"stage": "final", "optimizer": name.format(interval)}
        own = [row["curve"] for row in found["rows"] if wanted.items() <= row.items()]
        curves[name] = np.array(own, float).mean(0).tolist()
    return {
        "steps": (facts["steps"] // 100 * np.arange(1, 101)).tolist(),
        "curves": curves,
        "target": facts["target"],
        "metric": facts["metric"],
    }


def figure(data: dict[str, Any]) -> Figure:
    """Draws the figure."""
    figure = Figure(figsize=(12, 3.9), layout="constrained")
    axes = figure.subplots(1, 3)
    _draw_directions(axes[0], data["directions"])
    for axis, (interval, found) in zip(axes[1:], data["training"].items(), strict=True):
        _draw_training(axis, interval, found)
    axes[1].legend(frameon=False, loc="lower right")
    return figure


def _draw_directions(axis: Axes, data: dict[str, Any]) -> None:
    for rule, color in RULES.items():
        own = data[rule]
        x = own["refreshes"]
        axis.plot(x, own["median"], color=color, linewidth=2)
        axis.fill_between(
            x, own["least"], own["largest"], color=color, alpha=0.15, linewidth=0
        )
        axis.text(1, LABELS[rule], f"{rule} rule", color=color, va="top")
    layers = data["composite"]["layers"]
    axis.set(
        xscale="log",
        ylim=(0, 1.02),
        xlabel="refreshes",
        ylabel="cosine to Shampoo's direction",
        title=f"The direction, {layers} recorded layers\n(median, and all of them)",
    )


def _draw_training(axis: Axes, interval: str, data: dict[str, Any]) -> None:
    for name, (label, color, dash) in CURVES.items():
        axis.plot(data["steps"], data["curves"][name], dash, color=color, label=label)
    axis.axhline(data["target"], color="grey", linewidth=0.8)
    axis.text(0, data["target"], "target", va="bottom", color="grey")
    axis.set(
        xlabel="steps",
        ylabel=data["metric"],
        ylim=(0.76, 0.885),
        title=f"MLP, a refresh every {interval} steps\n(Fashion-MNIST, mean of 5)",
    )
