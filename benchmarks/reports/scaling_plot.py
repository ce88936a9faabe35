"""Draws the figure of benchmarks/cost/scaling.py, from the committed JSON alone.

Columns are what grows; rows are time of an update, operations, bytes and time to
compile. Points are measured or counted, dashed lines are formulas.
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from benchmarks.reports.scaling import (
    INTERVALS,
    TITLES,
    amortised,
    cases,
    default_tile,
    excess,
)

COLUMNS = {
    "width": "width of one square layer",
    "depth": "layers of 64 x 64",
    "tile": "largest side of a tile, ResNet-50",
    "interval": "interval between refreshes, ResNet-50",
}
ROWS = {  # and their units
    "seconds": ("seconds of an update", 1),
    "flops": ("GFLOP of matrix products", 1e9),
    "bytes": ("MB", 1e6),
    "compile": ("seconds to compile the update", 1),
}
LOOKS = {
    "SGD": ("#b8860b", "o"),
    "AdamW": ("#0072b2", "o"),
    "Jorge": ("#222222", "o"),
    "Jorge, plain step": ("#222222", "o"),
    "Jorge, refresh step": ("#c1272d", "o"),
    "Jorge, mean step": ("#c1272d", "o"),
    "a plain step": ("#222222", "o"),
    "a refresh, beside it": ("#c1272d", "o"),
    "mean of all steps": ("#c1272d", "o"),
    "Jorge's temporaries": ("#8a8a8a", "s"),
    "Jorge's state": ("#222222", "o"),
    "AdamW's state": ("#0072b2", "o"),
}
KINDS = {"plain": "a plain step", "refresh": "a refresh, beside it"}
Series = dict[str, Any]  # by label: points (with smallest and largest) and a line


def data() -> dict[str, Any]:
    """Returns the data of each panel: by label, x, points and the formula's line."""
    grown = {axis: _column(cases(axis)) for axis in ("width", "depth", "tile")}
    return {**grown, "interval": _intervals(default_tile())}


def _column(found: dict[int, dict[str, Any]]) -> dict[str, Series]:
    timed = {x: rows for x, rows in found.items() if rows["jorge"]["step_seconds"]}
    own = [rows["jorge"] for rows in found.values()]
    flops = {
        label: _series(
            found,
            [row["matmul_flops"][kind] for row in own],
            [row["formula_flops"][kind] for row in own],
        )
        for kind, label in KINDS.items()
    }
    return {
        "seconds": {
            **{
                TITLES[name]: _series(timed, _spreads(timed, name, "plain"))
                for name in ("sgd", "adamw")
            },
            **{
                f"Jorge, {kind} step": _series(
                    timed, _spreads(timed, "jorge", kind), _in_proportion(timed, kind)
                )
                for kind in KINDS
            },
        },
        "flops": flops,
        "bytes": {
            label: _series(found, [rows[name][key] for rows in found.values()])
            for label, name, key in (
                ("Jorge's temporaries", "jorge", "temporary_bytes"),
                ("Jorge's state", "jorge", "state_bytes"),
                ("AdamW's state", "adamw", "state_bytes"),
            )
        },
        "compile": {
            title: _series(
                found,
                [_numbers(rows[name]["compile_seconds"]) for rows in found.values()],
            )
            for name, title in TITLES.items()
        },
    }


def _intervals(rows: dict[str, Any]) -> dict[str, Series]:
    """The interval changes neither state nor program: those lines are flat."""
    column = _column({0: rows})
    own, flops = rows["jorge"], rows["jorge"]["matmul_flops"]
    plain = own["step_seconds"]["plain"]["median"]

    def flat(series: Series) -> Series:
        return {
            label: _series(INTERVALS, each["points"] * len(INTERVALS))
            for label, each in series.items()
        }

    def means(each: float, more: float) -> list[float]:
        return [amortised(each, more, interval) for interval in INTERVALS]

    counted = [flops[kind] for kind in KINDS]
    formula = [own["formula_flops"][kind] for kind in KINDS]
    still = flat(column["seconds"])
    return {
        "seconds": {
            **{label: still[label] for label in ("SGD", "AdamW", "Jorge, plain step")},
            "Jorge, mean step": _series(INTERVALS, means(plain, excess(own))),
        },
        "flops": {
            "a plain step": _series(INTERVALS, counted[:1] * len(INTERVALS)),
            "mean of all steps": _series(INTERVALS, means(*counted), means(*formula)),
        },
        "bytes": flat(column["bytes"]),
        "compile": flat(column["compile"]),
    }


def _series(x: Any, points: list[Any], line: list[float] | None = None) -> Series:
    return {"x": list(x), "points": points, "line": line}


def _numbers(spread: dict[str, float]) -> list[float]:
    return [spread[key] for key in ("median", "min", "max")]


def _spreads(found: dict, name: str, kind: str) -> list[list[float]]:
    return [_numbers(rows[name]["step_seconds"][kind]) for rows in found.values()]


def _in_proportion(found: dict, kind: str) -> list[float]:
    """The formula's operations of such a step, at the speed of the largest case."""
    flops = []
    for rows in found.values():
        formula = rows["jorge"]["formula_flops"]
        flops.append(formula["plain"] + (kind == "refresh") * formula["refresh"])
    last = _spreads(found, "jorge", kind)[-1][0]
    return [last * value / flops[-1] for value in flops]


def figure(data: dict[str, Any]) -> Figure:
    """A grid of panels, all of logarithmic scales."""
    figure = Figure(figsize=(15, 13), layout="constrained")
    grid = figure.subplots(len(ROWS), len(COLUMNS), sharex="col", sharey="row")
    for axes, (row, (measure, unit)) in zip(grid, ROWS.items(), strict=True):
        for axis, column in zip(axes, COLUMNS, strict=True):
            _draw(axis, data[column][row], unit)
        axes[0].set(yscale="log", ylabel=measure)
        axes[0].yaxis.set_major_locator(LogLocator(numticks=12))
        axes[0].yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    for axis, (column, title) in zip(grid[-1], COLUMNS.items(), strict=True):
        x = next(iter(data[column]["flops"].values()))["x"]
        axis.set(xscale="log", xlabel=title)
        axis.set_xticks(x, map(str, x))
        axis.xaxis.set_minor_locator(NullLocator())
    for axes in grid:  # labels of the first panel, and those that others have beside it
        known = set(axes[0].get_legend_handles_labels()[1])
        axes[0].legend(frameon=False, fontsize=8)
        handles, labels = axes[-1].get_legend_handles_labels()
        new = [(h, n) for h, n in zip(handles, labels, strict=True) if n not in known]
        if new:
            axes[-1].legend(*zip(*new, strict=True), frameon=False, fontsize=8)
    grid[0, 0].set_title("dashed: in proportion to the formula")
    grid[1, 0].set_title("dashed: the formula")
    return figure


def _draw(axis: Axes, series: Series, unit: float) -> None:
    """Points, with bars from the smallest to the largest where these are known."""
    for label, each in series.items():
        x, (color, marker) = each["x"], LOOKS[label]
        points = np.array(each["points"], dtype=float).reshape(len(x), -1) / unit
        middle, *ends = points.T
        bars = [middle - ends[0], ends[1] - middle] if ends else None
        look: Any = dict(fmt=marker, color=color, label=label, markersize=4)
        axis.errorbar(x, middle, bars, **look)
        if each["line"]:
            line = np.divide(each["line"], unit)
            axis.plot(x, line, "--", color=color, linewidth=1)
        else:
            axis.plot(x, middle, color=color, linewidth=1, alpha=0.4)
