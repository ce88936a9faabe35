"""Makes the tables and plots of the examples' workloads."""

import pathlib
from typing import Any

import numpy as np

from benchmarks.harness import results
from benchmarks.harness.summary import paired_ratio
from examples.shared import compare

NAMES = ("classification", "segmentation", "detection")
ORDER = (
    *("sgd", "adamw", "shampoo", "jorge", "jorge-whitening"),
    *("sgd/thirds", "shampoo/sgd-schedule"),
    *("jorge/sgd-schedule", "jorge-whitening/sgd-schedule"),
    "jorge-whitening, twice SGD's length/sgd-schedule",
    *("muon", "soap", "kl-shampoo", "psgd"),
    *("muon, SGD's decay", "soap, SGD's decay"),
    *("whitening, tuned", "by-shape", "by-shape, SGD's decay"),
    *("by-shape/default", "by-shape, SGD's decay/default"),
    *("from-adamw", "from-adamw, Adam's own length"),
)
Table = tuple[list[str], list[list[str]]]


def workload(name: str) -> Table:
    """Steps and seconds to the target, by seed; rows: optimizers."""
    comparison, data = read(name)
    metric, target, runs = comparison
    steps = {
        optimizer: [_at(rows, metric, target, "step") for rows in seeds]
        for optimizer, seeds in runs.items()
    }
    table = []
    for optimizer, seeds in runs.items():
        ours, sgd = (dict(enumerate(steps[key])) for key in (optimizer, "sgd"))
        seconds = [_at(rows, metric, target, "seconds") for rows in seeds]
        finals = [rows[-1][metric] for rows in seeds]
        rate = next(
            row["learning_rate"]
            for row in data["rows"]
            if row["optimizer"] == optimizer and row["stage"] == "final"
        )
        masks = [
            row["last"]["segm_ap"]
            for row in data["rows"]
            if row["optimizer"] == optimizer
            and row["stage"] == "final"
            and "segm_ap" in row.get("last", {})
        ]
        milliseconds = [1e3 * rows[-1]["seconds"] / rows[-1]["step"] for rows in seeds]
        table.append(
            [
                optimizer,
                f"{rate:g}",
                ", ".join("missed" if s is None else str(s) for s in steps[optimizer]),
                "" if optimizer == "sgd" else paired_ratio(ours, sgd),
                ", ".join("missed" if s is None else f"{s:.0f}" for s in seconds),
                _mean(finals),
                *([_mean(masks)] if masks else []),
                f"{np.median(milliseconds):.0f}",
            ]
        )
    return [
        "optimizer",
        "rate",
        f"steps to {target:.4f}, by seed",
        "over SGD's",
        "seconds to it",
        f"final {metric.replace('_', ' ')}, mean (seeds)",
        *(["final segm ap, mean (seeds)"] if len(table[0]) > 7 else []),
        "ms a step",
    ], table


def short(name: str) -> Table:
    """Jorge with SGD's schedule in fewer steps than SGD."""
    comparison, data = read(name)
    _, target, runs = comparison
    metric = comparison.metric.replace("_", " ")
    total = runs["sgd"][0][-1]["step"]
    rows = [row for row in data["rows"] if row["stage"] == "short"]
    table = []
    for optimizer in dict.fromkeys(row["optimizer"] for row in rows):
        own = [row for row in rows if row["optimizer"] == optimizer]
        finals = [row["final"] for row in own]
        reached = sum(final >= target for final in finals)
        table.append(
            [
                optimizer,
                f"{own[0]['steps'][-1]} ({own[0]['share']:g} of {total})",
                _mean(finals),
                f"{reached} of {len(finals)}",
            ]
        )
    header = ["optimizer", "steps", f"final {metric}, mean (seeds)"]
    return [*header, f"at {target:.4f} or above"], table


def tuning(name: str) -> Table:
    """Result of each learning rate on the tuning seed."""
    data = results.read(f"workload_{name}")
    table = []
    for optimizer in ORDER:
        key = {"stage": "tune", "optimizer": optimizer}
        runs = [row for row in data["rows"] if key.items() <= row.items()]
        if not runs:
            continue
        runs.sort(key=lambda row: row["learning_rate"])
        pairs = (f"{row['learning_rate']:g}: {_final(row)}" for row in runs)
        table.append([optimizer, ", ".join(pairs)])
    metric = data["provenance"]["metric"].replace("_", " ")
    return ["", f"learning rate: final {metric}"], table


def read(name: str) -> tuple[compare.Comparison, dict[str, Any]]:
    """Reads the final runs of a workload, as the comparison of the examples."""
    data = results.read(f"workload_{name}")
    metric = data["provenance"]["metric"]
    runs: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in ORDER}
    for run in data["rows"]:
        if run["stage"] != "final":
            continue
        rows = [
            {"step": step, "seconds": seconds, metric: value}
            for step, seconds, value in zip(
                run["steps"], run["seconds"], run["curve"], strict=True
            )
        ]
        runs[run["optimizer"]].append(rows)
    runs = {name: seeds for name, seeds in runs.items() if seeds}
    target = compare.SHARE * np.mean([rows[-1][metric] for rows in runs["sgd"]])
    return compare.Comparison(metric, float(target), runs), data


def plot_data(name: str) -> dict[str, Any]:
    """Returns the data of a workload's plot, of optimizers that the examples have."""
    comparison, _ = read(name)
    runs = {
        key: rows
        for key, rows in comparison.runs.items()
        if key.partition("/")[0] in compare.COLORS
    }
    return comparison._replace(runs=runs)._asdict()


def plot(data: dict[str, Any], path: pathlib.Path) -> None:
    """Draws the plot of a workload."""
    compare.plot(compare.Comparison(**data), path)


def _mean(values: list[float]) -> str:
    return f"{np.mean(values):.4f} ({', '.join(f'{value:.4f}' for value in values)})"


def _final(row: dict[str, Any]) -> str:
    loss, final = row["loss"][-1], row["final"]
    return "diverged" if loss is None or final is None else f"{final:.4f}"


def _at(rows: list[dict], metric: str, target: float, key: str) -> Any:
    row = compare.crossing(rows, metric, target)
    return None if row is None else row[key]
