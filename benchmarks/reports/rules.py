"""Makes the tables of training and of the ablation."""

from typing import Any

import numpy as np

from benchmarks.harness import results
from benchmarks.harness.summary import paired_ratio, steps_to
from benchmarks.training.ablation import PROTOTYPES, RULE, VARIANTS

Table = tuple[list[str], list[list[str]]]


def mean_and_seeds(values: list[float | None], digits: int) -> str:
    good = [value for value in values if value is not None]
    seeds = ", ".join("diverged" if v is None else f"{v:.{digits}f}" for v in values)
    return f"{np.mean(good):.{digits}f} ({seeds})" if good else "all diverged"


def steps_to_target(row: dict[str, Any], facts: dict[str, Any]) -> int | None:
    """Steps of a run of training.comparison to the target in the provenance."""
    return steps_to(
        facts["target"],
        row["curve"],
        larger_is_better=facts["larger_is_better"],
        every=facts["steps"] // 100,
    )


def training(problem: str) -> Table:
    """Rows: optimizers."""
    data = results.read(f"training_{problem}")
    facts = data["provenance"]
    finals = [row for row in data["rows"] if row["stage"] == "final"]
    steps = {}
    for row in finals:
        reached = steps_to_target(row, facts)
        steps.setdefault(row["optimizer"], {})[row["seed"]] = reached
    table = []
    for name in dict.fromkeys(row["optimizer"] for row in finals):
        rows = [row for row in finals if row["optimizer"] == name]
        if len(rows) < len(steps["sgd"]):
            continue  # not all seeds have run yet
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
                mean_and_seeds([row["final"] for row in rows], digits),
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


def ablation() -> Table:
    """Rows: variants of the whitening rule; columns: problems.

    Behind the seeds is the mean difference to the rule, on the seeds of the variant.
    """
    rows = results.read("ablation")["rows"]
    problems = {
        "mlp": ("MLP, accuracy", 4),
        "resnet": ("ResNet, accuracy", 3),
        "lm": ("transformer, loss", 3),
    }
    finals: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        key = row["problem"], row["variant"]
        finals.setdefault(key, {})[row["seed"]] = row["final"]
    table = []
    recorded = (variant for _, variant in finals)
    for variant in dict.fromkeys((RULE, *PROTOTYPES, *VARIANTS, *recorded)):
        cells = []
        for problem, (_, digits) in problems.items():
            own = finals.get((problem, variant), {})
            rule = finals.get((problem, RULE), {})
            cell = mean_and_seeds([own[seed] for seed in sorted(own)], digits)
            if variant != RULE:
                gaps = [own[seed] - rule[seed] for seed in own if seed in rule]
                cell += f"; {np.mean(gaps):+.{digits}f}" if gaps else ""
            cells.append(cell if own else "not run")
        if cells != ["not run"] * len(cells):
            table.append([variant, *cells])
    return ["variant", *(name for name, _ in problems.values())], table
