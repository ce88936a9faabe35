"""Tables about the rules of refreshing: the laboratory, their cost, training."""

import math
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.problems.summary import paired_ratio, steps_to

Table = tuple[list[str], list[list[str]]]

RULES = (
    "gradient itself",
    "paper",
    "congruence",
    "congruence, sub-steps",
    "composite",
    "composite, 3 stages",
)


def rule_cost() -> Table:
    """Models down, intervals across."""
    rows = results.read("rule_cost")["rows"]
    intervals = list(rows[0]["ratios"])
    table = [
        [
            row["model"],
            *(f"{row['ratios'][k]:.2f}" for k in intervals),
            f"{row['series']['state_bytes'] / 1e6:.0f} MB",
            f"{row['composite']['state_bytes'] / 1e6:.0f} MB",
        ]
        for row in rows
    ]
    header = ["", *(f"interval {k}" for k in intervals), "state, paper's", "composite"]
    return header, table


def _mean_and_seeds(values: list[float | None], digits: int) -> str:
    good = [value for value in values if value is not None]
    seeds = ", ".join("diverged" if v is None else f"{v:.{digits}f}" for v in values)
    return f"{np.mean(good):.{digits}f} ({seeds})" if good else "all diverged"


def training(problem: str) -> Table:
    """Optimizers down."""
    data = results.read(f"training_{problem}")
    facts = data["provenance"]
    finals = [row for row in data["rows"] if row["stage"] == "final"]
    steps = {}
    for row in finals:
        reached = steps_to(
            facts["target"],
            row["curve"],
            larger_is_better=facts["larger_is_better"],
            every=facts["steps"] // 100,
        )
        steps.setdefault(row["optimizer"], {})[row["seed"]] = reached
    table = []
    for name in dict.fromkeys(row["optimizer"] for row in finals):
        rows = [row for row in finals if row["optimizer"] == name]
        ratios = []
        for other in ("shampoo", "paper"):
            family, at, interval = name.partition("@")
            reference = steps.get(f"{other}@{interval}")
            same = family == other or not at or reference is None
            ratios.append("" if same else paired_ratio(steps[name], reference))
        digits = 4 if facts["larger_is_better"] else 1
        table.append(
            [
                name,
                f"{rows[0]['learning_rate']:g}",
                _mean_and_seeds([row["final"] for row in rows], digits),
                ", ".join(str(s or "missed") for s in steps[name].values()),
                *ratios,
            ]
        )
    header = [
        "optimizer",
        "rate",
        f"{facts['metric']} at the end, mean (seeds)",
        f"steps to {facts['target']:.4g}, by seed",
        "over exact Shampoo's",
        "over the paper's",
    ]
    return header, table


def rates(problem: str) -> Table:
    """Families down, what each learning rate gave in tuning across."""
    data = results.read(f"training_{problem}")
    tuning = [row for row in data["rows"] if row["stage"] == "tune"]
    table = []
    for name in dict.fromkeys(row["optimizer"] for row in tuning):
        runs = [row for row in tuning if row["optimizer"] == name]
        runs.sort(key=lambda row: row["learning_rate"])
        cells = (
            f"{row['learning_rate']:g}: "
            + ("diverged" if row["final"] is None else f"{row['final']:.4g}")
            for row in runs
        )
        table.append([name, ", ".join(cells)])
    return ["", f"learning rate: {data['provenance']['metric']}"], table


def lengths(problem: str) -> Table:
    """Directions and lengths down."""
    rows = results.read(f"length_{problem}")["rows"]
    larger = problem != "autoencoder"
    table = []
    for name in dict.fromkeys(row["variant"] for row in rows):
        runs = [r for r in rows if r["variant"] == name and r["stage"] == "final"]
        if not runs:
            continue
        first, length = name.split(", ")
        table.append(
            [
                first,
                length,
                f"{runs[0]['learning_rate']:g}",
                _mean_and_seeds([r["final"] for r in runs], 4 if larger else 1),
            ]
        )
    return ["direction", "length", "rate", "at the end, mean (seeds)"], table


def _number(value: Any, digits: int = 3) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "not finite"
    return f"{value:.{digits}f}"
