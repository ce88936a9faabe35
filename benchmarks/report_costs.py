"""Tables about cost: whole training steps, updates alone, memory, and the summary."""

from typing import Any

import numpy as np

from benchmarks import report_workloads, results
from benchmarks.report_rules import Table, mean_and_seeds, steps_to_target
from benchmarks.report_scaling import amortised
from examples.shared import compare

Row = dict[str, Any]

PSGD_SHARE = 0.03  # of PSGD-Kron's steps refresh, once it has begun
INTERVALS = {  # the paper's, and 50
    "resnet50": (2, 50),
    "deeplabv3_resnet50": (4, 50),
    "maskrcnn_resnet50_fpn": (8, 50),
}


def steps() -> Table:
    """Whole training steps; models and optimizers down."""
    rows = [row for row in results.read("step_cost")["rows"] if row["batch"]]
    table = []
    for part in dict.fromkeys(row["part"] for row in rows):
        own = _by_name(row for row in rows if row["part"] == part)
        sgd, adamw = own["sgd"], own["adamw"]
        for name, row in own.items():
            intervals = INTERVALS[row["model"]]
            table.append(
                [
                    f"{row['model']}, batch {row['batch']}, {row['size']} px",
                    name,
                    _spread(row["step_seconds"]["plain"], 1, "s"),
                    _spread(_refreshes(row), 1, "s"),
                    *(f"{_amortised(row, k) / _plain(sgd):.2f}" for k in intervals),
                    f"{_compile(row):.1f} s",
                    f"{_compile(row) / _compile(adamw):.2f}",
                ]
            )
    header = ["model", "optimizer", "plain step", "refresh step"]
    header += ["over SGD's, paper's interval", "at 50", "lower and compile"]
    return [*header, "over AdamW's"], table


def updates() -> Table:
    """The update alone; models and optimizers down."""
    rows = [row for row in results.read("step_cost")["rows"] if not row["batch"]]
    table = []
    for part in dict.fromkeys(row["part"] for row in rows):
        own = _by_name(row for row in rows if row["part"] == part)
        adamw, jorge = own["adamw"], own["jorge"]
        for name, row in own.items():
            flops = row["flops"]
            table.append(
                [
                    row["model"],
                    name,
                    _spread(row["step_seconds"]["plain"], 0, "ms"),
                    _spread(_refreshes(row), 0, "ms"),
                    *(
                        f"{_amortised(row, k) / _amortised(jorge, k):.2f}"
                        for k in INTERVALS[row["model"]]
                    ),
                    f"{flops['plain'] / 1e9:.0f} + {flops['refresh'] / 1e9:.0f}",
                    f"{row['state_bytes'] / 1e6:.0f} MB",
                    f"{_compile(row):.1f} s",
                    f"{_compile(row) / _compile(adamw):.2f}",
                ]
            )
    header = [
        "model",
        "optimizer",
        "plain",
        "refresh",
        "over Jorge's, paper's interval",
    ]
    header += ["at 50", "matmul GFLOP, plain + refresh", "state"]
    return [*header, "lower and compile", "over AdamW's"], table


def memory() -> Table:
    """Bytes of state over AdamW's; option sets down, models across."""
    rows = [r for r in results.read("memory_study")["rows"] if r["kind"] == "bytes"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    table = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = {row["model"]: row for row in rows if row["variant"] == variant}
        table.append(
            [
                variant,
                f"{own['resnet50']['bytes'] / 1e6:.0f} MB",
                *(f"{own[model]['over_adamw']:.3f}" for model in models),
            ]
        )
    return ["state over AdamW's", "ResNet-50", *models], table


def memory_runs() -> Table:
    """What the option sets cost in quality; option sets down, problems across."""
    rows = [r for r in results.read("memory_study")["rows"] if r["kind"] == "run"]
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    table = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        cells = []
        for problem in problems:
            finals = [
                row["final"]
                for row in rows
                if (row["variant"], row["problem"]) == (variant, problem)
            ]
            cells.append(mean_and_seeds(finals, 4) if finals else "not run")
        table.append([variant, *cells])
    header = [f"{p}: test accuracy, mean (seeds)" for p in problems]
    return ["", *header], table


def summary() -> Table:
    """Optimizers by workload: steps and seconds to the target, end, bytes, misses."""
    costs = {
        (row["problem"], row["optimizer"]): row
        for row in results.read("problem_costs")["rows"]
    }
    table = []
    for name, title in (
        ("classification", "ResNet-8, CIFAR-10 at 16 px"),
        ("segmentation", "thin DeepLabv3, scenes"),
    ):
        comparison, _ = report_workloads.read(name)
        for optimizer, seeds in comparison.runs.items():
            if optimizer == "sgd/thirds":
                continue
            crossings = [
                compare.crossing(rows, comparison.metric, comparison.target)
                for rows in seeds
            ]
            found = [row for row in crossings if row]
            plain = optimizer.removesuffix("/sgd-schedule")
            table.append(
                _summary_row(
                    title,
                    optimizer,
                    [row["step"] for row in found],
                    [row["seconds"] for row in found],
                    [rows[-1][comparison.metric] for rows in seeds],
                    comparison.target,
                    costs[name, plain]["state_bytes"],
                )
            )
    for name, title in (
        ("mlp", "MLP, Fashion-MNIST"),
        ("resnet", "small ResNet, CIFAR-10 halved"),
        ("autoencoder", "autoencoder, Fashion-MNIST"),
    ):
        table += _problem(name, title, costs)
    header = ["workload (target)", "optimizer", "steps to the target, median"]
    header += ["seconds to it", "at the end, mean", "state", "seeds that missed it"]
    return header, table


def _problem(name: str, title: str, costs: dict) -> list[list[str]]:
    data = results.read(f"training_{name}")
    facts = data["provenance"]
    table = []
    for optimizer in (
        *("sgd", "adamw", "muon", "psgd"),
        *(f"{family}@10/sgd-rate" for family in ("shampoo", "paper", "composite")),
    ):
        key = {"stage": "final", "optimizer": optimizer}
        runs = [row for row in data["rows"] if key.items() <= row.items()]
        steps = [steps_to_target(row, facts) for row in runs]
        cost = costs[name, optimizer.removesuffix("/sgd-rate")]
        found = [step for step in steps if step]
        seconds = [step * cost["step_seconds"]["median"] for step in found]
        finals = [row["final"] for row in runs]
        table.append(
            _summary_row(
                title,
                optimizer,
                found,
                seconds,
                finals,
                facts["target"],
                cost["state_bytes"],
            )
        )
    return table


def _summary_row(
    title: str,
    optimizer: str,
    steps: list[int],
    seconds: list[float],
    finals: list[float | None],
    target: float,
    state_bytes: int,
) -> list[str]:
    good = [final for final in finals if final is not None]
    missed = len(finals) - len(steps)
    return [
        f"{title} ({target:.4g})",
        optimizer,
        f"{np.median(steps):.0f}" if steps else "missed",
        f"{np.median(seconds):.1f}" if steps else "missed",
        f"{np.mean(good):.4g}" if good else "diverged",
        f"{state_bytes / 1e6:.2f} MB",
        f"{missed} of {len(finals)}" if missed else "none",
    ]


def _by_name(rows: Any) -> dict[str, Row]:
    return {row["optimizer"]: row for row in rows}


def _refreshes(row: Row) -> list[float]:
    return row["step_seconds"].get("refresh", [])


def _plain(row: Row) -> float:
    return float(np.median(row["step_seconds"]["plain"]))


def _amortised(row: Row, interval: float) -> float:
    """Seconds of a mean step; PSGD-Kron refreshes with its own probability."""
    if not _refreshes(row):
        return _plain(row)
    more = float(np.median(_refreshes(row))) - _plain(row)
    if row["optimizer"] == "psgd":
        interval = 1 / PSGD_SHARE
    return amortised(_plain(row), more, interval)


def _compile(row: Row) -> float:
    return float(np.median([sum(pair) for pair in row["lower_and_compile_seconds"]]))


def _spread(seconds: list[float], digits: int, unit: str) -> str:
    if not seconds:
        return ""
    values = np.array(seconds) * {"s": 1, "ms": 1e3}[unit]
    middle, low, high = np.median(values), values.min(), values.max()
    return f"{middle:.{digits}f} {unit} ({low:.{digits}f} to {high:.{digits}f})"
