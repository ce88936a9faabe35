"""Makes the tables of benchmarks/cost/scaling.py; scaling_plot.py draws the figure."""

from typing import Any

import numpy as np

from benchmarks.harness import results
from benchmarks.reports.rules import Table

INTERVALS = (1, 2, 5, 10, 20, 50, 100)
TITLES = {"sgd": "SGD", "adamw": "AdamW", "jorge": "Jorge"}


def cases(axis: str) -> dict[int, dict[str, Any]]:
    """Returns the rows by value, in order, and optimizer."""
    rows = [row for row in results.read("scaling_study")["rows"] if row["axis"] == axis]
    return {
        value: {row["optimizer"]: row for row in rows if row["value"] == value}
        for value in sorted({row["value"] for row in rows})
    }


def amortised(plain: float, refresh: float, interval: float) -> float:
    """Mean over an interval in which one step costs `refresh` more than the others."""
    return plain + refresh / interval


def excess(row: dict[str, Any]) -> float:
    """Additional seconds of a refresh step."""
    return _seconds(row, "refresh") - _seconds(row, "plain")


def _seconds(row: dict[str, Any], kind: str) -> float:
    return row["step_seconds"][kind]["median"]


def _ms(row: dict[str, Any], kind: str) -> str:
    """Median, smallest and largest; nothing if no steps were run."""
    values = row["step_seconds"].get(kind)
    return _spread({k: 1e3 * v for k, v in values.items()}) if values else ""


def _spread(values: dict[str, float]) -> str:
    numbers = (_short(values[key]) for key in ("median", "min", "max"))
    return "{} ({} to {})".format(*numbers)


def _short(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.{max(0, 2 - int(np.floor(np.log10(value))))}f}" if value else "0"


def _giga(value: float) -> str:
    return _short(value / 1e9)


def _mega(value: float) -> str:
    return f"{_short(value / 1e6)} MB"


def scaling_width() -> Table:
    """Rows: widths."""
    table = []
    for width, rows in cases("width").items():
        own, adamw = rows["jorge"], rows["adamw"]
        flops = own["matmul_flops"]
        table.append(
            [
                str(width),
                _ms(rows["sgd"], "plain"),
                _ms(adamw, "plain"),
                _ms(own, "plain"),
                _short(_seconds(own, "plain") / _seconds(adamw, "plain")),
                _ms(own, "refresh"),
                f"{_giga(flops['plain'])}, {_giga(flops['refresh'])}",
                f"{_mega(adamw['state_bytes'])}, {_mega(own['state_bytes'])}",
                _mega(own["temporary_bytes"]),
                _spread(own["compile_over_adamw"]),
            ]
        )
    header = [
        "width",
        "SGD's step, ms (min to max)",
        "AdamW's",
        "Jorge's, plain",
        "over AdamW's",
        "Jorge's, with a refresh",
        "matmul GFLOP, each step and a refresh",
        "state, AdamW's and Jorge's",
        "temporary, Jorge's",
        "compile over AdamW's",
    ]
    return header, table


def scaling_depth() -> Table:
    """Rows: numbers of layers."""
    table = []
    found = cases("depth")
    first = next(iter(found.values()))["jorge"]["compile_over_adamw"]["median"]
    for depth, rows in found.items():
        own, adamw = rows["jorge"], rows["adamw"]
        ratio = own["compile_over_adamw"]
        lower = (_short(row["lower_seconds"]["median"]) for row in (adamw, own))
        table.append(
            [
                str(depth),
                *(_spread(rows[name]["compile_seconds"]) for name in TITLES),
                _spread(ratio),
                f"{ratio['median'] / first:.2f}",
                ", ".join(lower),
                f"{_ms(own, 'plain')}, {_ms(own, 'refresh')}",
                _short(_seconds(own, "plain") / _seconds(adamw, "plain")),
            ]
        )
    header = [
        "layers of 64 x 64",
        "compile, s: SGD (min to max)",
        "AdamW",
        "Jorge",
        "Jorge over AdamW",
        f"against {next(iter(found))} layers",
        "lowering, s: AdamW, Jorge",
        "Jorge's step, ms: plain, with a refresh",
        "plain over AdamW's",
    ]
    return header, table


def scaling_tile() -> Table:
    """Rows: tile sizes."""
    table = []
    for tile, rows in cases("tile").items():
        own = rows["jorge"]
        flops, least = own["matmul_flops"], own["least_flops"]
        ratio = flops["refresh"] / least["refresh"]
        table.append(
            [
                str(tile),
                f"{own['stacks']}, {own['tiles']}",
                _giga(flops["plain"]),
                f"{_giga(flops['refresh'])} ({ratio:.3f})",
                _giga(own["formula_flops"]["refresh"]),
                _mega(own["state_bytes"]),
                _mega(own["temporary_bytes"]),
                _spread(own["compile_over_adamw"]),
                _ms(own, "plain"),
                _ms(own, "refresh"),
            ]
        )
    header = [
        "largest side",
        "stacks, tiles",
        "matmul GFLOP, each step",
        "a refresh (over the least)",
        "all by grams",
        "state",
        "temporary",
        "compile over AdamW's (min to max)",
        "plain step, ms",
        "with a refresh",
    ]
    return header, table


def default_tile() -> dict[str, Any]:
    """ResNet-50's rows at the default tile size."""
    return cases("tile")[results.read("scaling_study")["provenance"]["tile"]]


def scaling_interval() -> Table:
    """Rows: intervals; ResNet-50 at the default tile size."""
    rows = default_tile()
    own, adamw = rows["jorge"], _seconds(rows["adamw"], "plain")
    flops = own["matmul_flops"]
    table = []
    for interval in INTERVALS:
        mean_flops = amortised(flops["plain"], flops["refresh"], interval)
        seconds = amortised(_seconds(own, "plain"), excess(own), interval)
        table.append(
            [
                str(interval),
                _giga(mean_flops),
                f"{mean_flops / flops['plain']:.2f}",
                _short(1e3 * seconds),
                f"{seconds / _seconds(own, 'plain'):.2f}",
                _short(seconds / adamw),
            ]
        )
    header = [
        "interval",
        "matmul GFLOP a step, mean",
        "over a plain step's",
        "ms a step, mean",
        "over a plain step's",
        "over AdamW's step",
    ]
    return header, table


def gpu_depth() -> Table:
    """Compile time for an A100; rows: numbers of layers."""
    table = []
    for row in results.read("gpu_depth")["rows"]:
        seconds = row["compile_seconds"]
        ratio = np.median(np.divide(seconds["jorge"], seconds["adamw"]))
        medians = [_short(float(np.median(seconds[name]))) for name in TITLES]
        table.append([str(row["depth"]), *medians, _short(float(ratio))])
    header = ["layers of 64 x 64", *(f"{title}, s" for title in TITLES.values())]
    return [*header, "Jorge over AdamW"], table
