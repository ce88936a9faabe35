"""Draws the figures of benchmarks/numerics, from the committed JSON alone.

A function ``*_data`` returns numbers, lists and dicts; ``*_figure`` draws them.
"""

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness import results

STYLE = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "font.size": 9,
    "grid.alpha": 0.3,
    "axes.grid": True,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
LINES: dict[str, tuple[str, str]] = {
    "composite": ("#c1272d", "-"),
    "congruence, sub-steps": ("#0072b2", "-"),
    "congruence, floor": ("#56a5d8", "--"),
    "paper, best quadratic": ("#8a8a8a", "--"),
    "paper": ("#222222", "-"),
    "gradient itself": ("#b8860b", ":"),
}
PANELS = {
    "mlp": "MLP, first steps",
    "mlp, late": "MLP, after 1,000 steps",
    "autoencoder": "deep autoencoder",
    "resnet": "ResNet, batch norm",
    "transformer": "transformer",
    "quadratic": "quadratic, known answer",
}
SERIES = {"series, binomial": ("#222222", "-"), "series, best": ("#8a8a8a", "--")}
DEGREES = (4, 3, 2, 1)  # of equal polynomials
ENDURING = ("composite", "congruence, sub-steps", "paper")
STREAMS = (
    "rank 1, constant",
    "waking direction",
    "MLP, layer 0, border",
    "MLP, layer 1",
    "transformer, MLP",
)


def cosine_data() -> dict[str, dict[str, Any]]:
    """By model and rule: refreshes, operations and cosines to exact Shampoo."""
    rows = [
        row
        for row in results.read("numerics_accuracy")["rows"]
        if row["arithmetic"] == "float32"
    ]

    def curves(kind: str, name: str) -> dict[str, list[float]]:
        own = [r for r in rows if r["kind"] == kind and r["rule"] == name]
        means = {key: _mean(own, key) for key in ("cosine", "bare_cosine", "gflop")}
        return {"refreshes": own[0]["refreshes"], **means}

    return {kind: {name: curves(kind, name) for name in LINES} for kind in PANELS}


def cosine_figure(data: dict[str, dict[str, Any]]) -> Figure:
    """Cosine to exact Shampoo against refreshes and against operations."""
    figure = Figure(figsize=(15, 9), layout="constrained")
    axes = figure.subplots(3, len(PANELS), sharey=True)
    for column, (kind, title) in enumerate(PANELS.items()):
        for name, (color, dash) in LINES.items():
            own = data[kind][name]
            look: Any = dict(color=color, linestyle=dash, linewidth=1.7)
            axes[0, column].plot(own["refreshes"], own["cosine"], label=name, **look)
            axes[1, column].plot(own["refreshes"], own["bare_cosine"], **look)
            if name != "gradient itself":
                axes[2, column].plot(own["gflop"], own["cosine"], **look)
        for row, label in enumerate(("refreshes", "refreshes", "GFLOP of refreshes")):
            axes[row, column].set(xscale="log", xlabel=label, ylim=(0.2, 1.02))
        axes[0, column].set_title(title)
    for axis in axes[:2].flat:
        for goal in ((5, 0.9), (100, 0.97)):
            axis.plot(*goal, marker="+", color="black", markersize=9)
    axes[0, 0].set_ylabel("cosine to Shampoo,\nsame start as composite")
    axes[1, 0].set_ylabel("cosine to Shampoo\nstarted at zero")
    axes[2, 0].set_ylabel("cosine to Shampoo,\nsame start as composite")
    figure.suptitle(
        "How near is the direction to that of Shampoo with exact roots? 1 is the same "
        "direction; + marks the goals, 0.9 after 5 and 0.97 after 100 refreshes. "
        "Mean of two or three layers"
    )
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(LINES),
        frameon=False,
    )
    return figure


def _mean(rows: list[dict], key: str) -> list[float]:
    """Over the layers of a model; a root that is not finite counts as 0."""
    values = [[value or 0 for value in row[key]] for row in rows]
    return np.mean(values, axis=0).tolist()


def terms_data() -> dict[str, Any]:
    """Matrix products with the error of the function, and of the direction."""
    rows = results.read("numerics_terms")["rows"]
    data: dict[str, Any] = {}
    for kind in SERIES:
        own = [row for row in rows if row["kind"] == kind]
        points = [[row["products"], row["error"], row["cosine_100"]] for row in own]
        data[kind] = {
            "error": [[products, error] for products, error, _ in points],
            "cosine": [[products, cosine] for products, _, cosine in points],
        }
    own = [row for row in rows if row["kind"] == "composite"]
    for degree in DEGREES:
        same = [row for row in own if row["degree"] == degree]
        fixed = [row for row in same if row["smallest"] == 1e-3]
        best = {row["products"]: 0.0 for row in same}
        for row in same:
            cosine = row["cosine_100"] or 0.0
            best[row["products"]] = max(best[row["products"]], cosine)
        data[f"degree {degree}"] = {
            "error": [[row["products"], row["error"]] for row in fixed],
            "cosine": [list(point) for point in sorted(best.items())],
        }
    package = next(row for row in own if row["degree"] == "1, 4, 4")
    data["default"] = [package["products"], package["cosine_100"]]
    return data


def terms_figure(data: dict[str, Any]) -> Figure:
    """Error of the function, and of the direction, against matrix products."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    colors = mpl.colormaps["autumn"](np.linspace(0, 0.65, len(DEGREES)))
    looks: dict[str, Any] = {
        kind: dict(
            color=color,
            linestyle=dash,
            marker="o",
            label="paper's rule, 1 to 4 terms, " + kind.split()[-1],
        )
        for kind, (color, dash) in SERIES.items()
    }
    for degree, color in zip(DEGREES, colors, strict=True):
        label = f"composite, degree {degree}"
        looks[f"degree {degree}"] = dict(color=color, marker="s", label=label)
    for kind, look in looks.items():
        left.semilogy(*zip(*data[kind]["error"], strict=True), **look)
        right.plot(*zip(*data[kind]["cosine"], strict=True), **look)
    right.plot(*data["default"], "*", markersize=13, color="#c1272d")
    right.annotate(
        "the default:\ndegrees 1, 4, 4",
        data["default"],
        xytext=(0, -34),
        textcoords="offset points",
        ha="center",
    )
    left.set(
        title="Error of the scalar function in one refresh\n"
        "series: (1 + x)^(-1/4) on [0, 1]; composite: x^(-1/4) on [0.001, 1]",
        ylabel="largest relative error",
        ylim=(1e-7, 1),
    )
    right.set(
        title="Direction after 100 refreshes, median of 12 recorded layers\n"
        "composite: each point with the best of seven ranges of eigenvalues",
        ylabel="cosine to Shampoo with exact roots, same start",
        ylim=(0, 1.02),
    )
    for axis in (left, right):
        axis.set(xlabel="matrix products a refresh, square side", xlim=(0, 21))
    handles = left.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def endurance_data() -> dict[str, dict[str, Any]]:
    """By stream and rule: asymmetry and smallest eigenvalue along refreshes."""
    histories = {
        (row["stream"], row["rule"]): row["history"]
        for row in results.read("numerics_endurance")["rows"]
        if row["tile"] == "32x16"
    }
    return {s: {name: histories[s, name] for name in ENDURING} for s in STREAMS}


def endurance_figure(data: dict[str, dict[str, Any]]) -> Figure:
    """Asymmetry and smallest eigenvalue over 100,000 refreshes."""
    figure = Figure(figsize=(14, 6), layout="constrained")
    axes = figure.subplots(2, len(STREAMS), sharex=True, sharey="row")
    for column, stream in enumerate(STREAMS):
        for name in ENDURING:
            color, _ = LINES[name]
            history = data[stream][name]
            for line, key in enumerate(("asymmetry", "smallest")):
                axes[line, column].plot(
                    history["refreshes"],
                    [np.nan if y is None else y for y in history[key]],
                    color=color,
                    marker="o",
                    markersize=3,
                    label=name,
                )
        axes[0, column].set(title=stream, xscale="log")
        axes[0, column].set_yscale("symlog", linthresh=1e-8)
        axes[0, column].set_ylim(-2e-9, 3)
        axes[1, column].set_yscale("symlog", linthresh=1e-4)
        axes[1, column].axhline(0, color="black", linewidth=0.8)
        axes[1, column].set_xlabel("refreshes")
    axes[0, 0].annotate(
        "composite, congruence: exactly 0",
        (1e2, 0),
        xytext=(0, 6),
        textcoords="offset points",
    )
    axes[0, 0].set_ylabel("asymmetry, |root - transpose| / |root|,\nlargest so far")
    axes[1, 0].set_ylabel("smallest eigenvalue over largest,\nof the symmetric part")
    figure.suptitle(
        "Are the roots symmetric (upper row: 0) and positive (lower row: above 0) "
        "over 100,000 refreshes in float32?  Tiles of 32 x 16"
    )
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
    return figure
