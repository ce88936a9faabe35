"""The laboratory's figures, from its JSON alone, into docs/images.

python -m benchmarks.numerics.plots
"""

import pathlib
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from benchmarks import results

FOLDER = pathlib.Path(__file__).parent.parent.parent / "docs" / "images"
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


def cosine_figure() -> Figure:
    """Cosine to exact Shampoo against refreshes and against operations."""
    rows = [
        row
        for row in results.read("numerics_accuracy")["rows"]
        if row["arithmetic"] == "float32" and row["kind"] in PANELS
    ]
    figure, axes = plt.subplots(
        3, len(PANELS), figsize=(15, 9), sharey=True, layout="constrained"
    )
    for column, (kind, title) in enumerate(PANELS.items()):
        for name, (color, dash) in LINES.items():
            own = [r for r in rows if r["kind"] == kind and r["rule"] == name]
            counts = own[0]["refreshes"]
            cosines, bare, gflops = (
                _mean(own, key) for key in ("cosine", "bare_cosine", "gflop")
            )
            look: Any = dict(color=color, linestyle=dash, linewidth=1.7)
            axes[0, column].plot(counts, cosines, label=name, **look)
            axes[1, column].plot(counts, bare, **look)
            if name != "gradient itself":
                axes[2, column].plot(gflops, cosines, **look)
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


def _mean(rows: list[dict], key: str) -> np.ndarray:
    """Over the layers of a model; a root that is not finite counts as 0."""
    return np.mean([[value or 0 for value in row[key]] for row in rows], axis=0)


def terms_figure() -> Figure:
    """Error of the function, and of the direction, against matrix products."""
    rows = results.read("numerics_terms")["rows"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    for kind, color, dash in (
        ("series, binomial", "#222222", "-"),
        ("series, best", "#8a8a8a", "--"),
    ):
        own = [row for row in rows if row["kind"] == kind]
        products = [row["products"] for row in own]
        name = "paper's rule, 1 to 4 terms, " + kind.split()[-1]
        look: Any = dict(color=color, linestyle=dash, marker="o", label=name)
        left.semilogy(products, [row["error"] for row in own], **look)
        right.plot(products, [row["cosine_100"] for row in own], **look)
    colors = mpl.colormaps["autumn"](np.linspace(0, 0.65, 4))
    own = [row for row in rows if row["kind"] == "composite"]
    for degree, color in zip((4, 3, 2, 1), colors, strict=True):
        same = [row for row in own if row["degree"] == degree]
        fixed = [row for row in same if row["smallest"] == 1e-3]
        look = dict(color=color, marker="s", label=f"composite, degree {degree}")
        left.semilogy(
            [row["products"] for row in fixed], [row["error"] for row in fixed], **look
        )
        best = {row["products"]: 0.0 for row in same}
        for row in same:
            cosine = row["cosine_100"] or 0.0
            best[row["products"]] = max(best[row["products"]], cosine)
        right.plot(sorted(best), [best[products] for products in sorted(best)], **look)
    package = next(row for row in own if row["degree"] == "1, 4, 4")
    right.plot(
        package["products"],
        package["cosine_100"],
        marker="*",
        markersize=13,
        color="#c1272d",
        linestyle="",
    )
    right.annotate(
        "the default:\ndegrees 1, 4, 4",
        (package["products"], package["cosine_100"]),
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


def endurance_figure() -> Figure:
    """Asymmetry and smallest eigenvalue over 100,000 refreshes."""
    rows = results.read("numerics_endurance")["rows"]
    streams = (
        "rank 1, constant",
        "waking direction",
        "MLP, layer 0, border",
        "MLP, layer 1",
        "transformer, MLP",
    )
    figure, axes = plt.subplots(
        2,
        len(streams),
        figsize=(14, 6),
        sharex=True,
        sharey="row",
        layout="constrained",
    )
    for column, stream in enumerate(streams):
        for name in ("composite", "congruence, sub-steps", "paper"):
            color, _ = LINES[name]
            row = next(
                r
                for r in rows
                if (r["rule"], r["stream"], r["tile"]) == (name, stream, "32x16")
            )
            for line, key in enumerate(("asymmetry", "smallest")):
                history = row["history"]
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


def main() -> None:
    """Draws all."""
    figures = {
        "cosine": cosine_figure,
        "terms": terms_figure,
        "endurance": endurance_figure,
    }
    with mpl.rc_context(STYLE):
        for name, draw in figures.items():
            path = FOLDER / f"numerics_{name}.png"
            draw().savefig(path, dpi=110)
            print(path.name)


if __name__ == "__main__":
    main()
