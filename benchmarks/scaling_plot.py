"""The picture of scaling_study.py, from the committed JSON alone."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from benchmarks.report_scaling import (
    INTERVALS,
    TITLES,
    amortised,
    cases,
    default_tile,
)

COLORS = {"sgd": "#b8860b", "adamw": "#0072b2", "jorge": "#222222"}
KINDS = {"plain": "#222222", "refresh": "#c1272d"}  # of Jorge's steps
FORMULA: dict[str, Any] = {"linestyle": "--", "linewidth": 1}
BYTES = {
    "Jorge's temporaries": ("#8a8a8a", "s:"),
    "Jorge's state": ("#222222", "o-"),
    "AdamW's state": ("#0072b2", "-"),
    "parameters": ("#b8860b", "--"),
}
LABELS = {
    "width": "width of one square layer",
    "depth": "layers of 64 x 64",
    "tile": "largest side of a tile",
    "interval": "interval between refreshes",
}
PANELS = ("width", "width", "depth", "tile", "tile", "interval")


def data() -> dict[str, Any]:
    """What the picture shows; of spreads: median, smallest, largest."""
    wide, deep, tiled = cases("width"), cases("depth"), cases("tile")

    def spreads(found: dict, name: str, *keys: str) -> list[list[float]]:
        values = [_at(rows[name], *keys) for rows in found.values()]
        return [[v["median"], v["min"], v["max"]] for v in values]

    def own(found: dict, *keys: str, name: str = "jorge") -> list[float]:
        return [_at(rows[name], *keys) for rows in found.values()]

    def flops(found: dict, key: str) -> dict[str, Any]:
        return {kind: own(found, key, kind) for kind in KINDS}

    seconds = {name: spreads(wide, name, "step_seconds", "plain") for name in TITLES}
    seconds["refresh"] = spreads(wide, "jorge", "step_seconds", "refresh")
    compiling = {name: spreads(deep, name, "compile_seconds") for name in TITLES}
    default = default_tile()["jorge"]
    return {
        "width": {
            "x": list(wide),
            "seconds": seconds,
            "flops": flops(wide, "matmul_flops"),
            "formula": flops(wide, "formula_flops"),
        },
        "depth": {
            "x": list(deep),
            "seconds": compiling,
            "ratio": own(deep, "compile_over_adamw", "median"),
        },
        "tile": {
            "x": list(tiled),
            "flops": flops(tiled, "matmul_flops"),
            "formula": flops(tiled, "formula_flops"),
            "bytes": {
                "Jorge's state": own(tiled, "state_bytes"),
                "Jorge's temporaries": own(tiled, "temporary_bytes"),
                "AdamW's state": own(tiled, "state_bytes", name="adamw"),
                "parameters": own(tiled, "parameter_bytes"),
            },
        },
        "interval": {
            "x": list(INTERVALS),
            "flops": [
                amortised(**default["matmul_flops"], interval=k) for k in INTERVALS
            ],
            "formula": default["formula_flops"],
        },
    }


def _at(row: Any, *keys: str) -> Any:
    for key in keys:
        row = row[key]
    return row


def figure(data: dict[str, Any]) -> Figure:
    """Six panels, all of logarithmic scales."""
    figure = Figure(figsize=(13, 7.8), layout="constrained")
    axes = figure.subplots(2, 3)
    _draw_times(axes[0, 0], data["width"])
    _draw_flops(axes[0, 1], data["width"], "tiles of 256\nlines: the formula")
    _draw_compiling(axes[0, 2], data["depth"])
    _draw_flops(axes[1, 0], data["tile"], "ResNet-50\nlines: if all went by grams")
    _draw_bytes(axes[1, 1], data["tile"])
    _draw_intervals(axes[1, 2], data["interval"])
    for axis, key in zip(axes.flat, PANELS, strict=True):
        axis.set(xscale="log", yscale="log", xlabel=LABELS[key])
        axis.set_xticks(data[key]["x"], map(str, data[key]["x"]))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axis.legend(frameon=False, fontsize=8)
    for axis in axes[1, 1:]:  # less than two decades
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_minor_locator(NullLocator())
    return figure


def _points(axis: Axes, x: list[float], spreads: Any, label: str, color: str) -> None:
    """Medians, with bars from the smallest to the largest."""
    middle, low, high = np.array(spreads).T
    bars = [middle - low, high - middle]
    axis.errorbar(x, middle, bars, fmt="o", color=color, label=label, markersize=4)


def _draw_times(axis: Axes, data: dict[str, Any]) -> None:
    x, seconds = data["x"], data["seconds"]
    for name in ("sgd", "adamw"):
        _points(axis, x, seconds[name], TITLES[name], COLORS[name])
    flops = np.zeros(len(x))
    for (kind, color), name in zip(KINDS.items(), ("jorge", "refresh"), strict=True):
        _points(axis, x, seconds[name], f"Jorge, {kind} step", color)
        flops = flops + data["formula"][kind]
        axis.plot(x, flops * (seconds[name][-1][0] / flops[-1]), color=color, **FORMULA)
    axis.set(
        ylabel="seconds, median and range",
        title="Time of an update, CPU\nlines: in proportion to the formula",
    )


def _draw_flops(axis: Axes, data: dict[str, Any], what: str) -> None:
    for kind, color in KINDS.items():
        counted, formula = (np.divide(data[k][kind], 1e9) for k in ("flops", "formula"))
        label = {"plain": "each step", "refresh": "a refresh, beside these"}[kind]
        axis.plot(data["x"], counted, "o", color=color, markersize=5, label=label)
        axis.plot(data["x"], formula, color=color, **FORMULA)
    axis.set(ylabel="GFLOP", title=f"Matrix products, counted, {what}")


def _draw_compiling(axis: Axes, data: dict[str, Any]) -> None:
    x, ratio = data["x"], data["ratio"]
    for name, title in TITLES.items():
        _points(axis, x, data["seconds"][name], title, COLORS[name])
        middle = [values[0] for values in data["seconds"][name]]
        axis.plot(x, middle, color=COLORS[name], linewidth=1)
    axis.set(
        ylabel="seconds, median and range",
        title=f"Time to compile the update; Jorge's over AdamW's:\n{ratio[0]:.1f} with "
        f"{x[0]} layers, {ratio[-1]:.1f} with {x[-1]}",
    )


def _draw_bytes(axis: Axes, data: dict[str, Any]) -> None:
    for label, (color, look) in BYTES.items():
        values = np.divide(data["bytes"][label], 1e6)
        axis.plot(data["x"], values, look, color=color, markersize=5, label=label)
    top = max(map(max, data["bytes"].values())) / 1e6
    axis.set(ylabel="MB", ylim=(None, 6 * top), title="Memory, ResNet-50")


def _draw_intervals(axis: Axes, data: dict[str, Any]) -> None:
    plain, refresh = (data["formula"][kind] / 1e9 for kind in KINDS)
    k = np.geomspace(data["x"][0], data["x"][-1], 100)
    counted = np.divide(data["flops"], 1e9)
    color = KINDS["refresh"]
    axis.plot(data["x"], counted, "o", color=color, markersize=5, label="counted")
    axis.plot(k, amortised(plain, refresh, k), color=color, label="formula", **FORMULA)
    axis.axhline(plain, color=KINDS["plain"], label="without refreshes", **FORMULA)
    axis.set(
        ylabel="GFLOP",
        title="Matrix products, mean of all steps,\nResNet-50, tiles of 256",
    )
