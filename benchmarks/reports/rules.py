"""Makes the tables of refresh rules: their numerics, cost and training."""

import math
from typing import Any

import numpy as np

from benchmarks.harness import results
from benchmarks.harness.summary import paired_ratio, steps_to
from benchmarks.training.ablation import RULE, VARIANTS

Table = tuple[list[str], list[list[str]]]

RULES = (
    "gradient itself",
    "paper",
    "congruence",
    "congruence, sub-steps",
    "composite",
    "composite, 2 polynomials",
)
QUALITY_AFTER = (1, 5, 20, 100)


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


def rates(problem: str) -> Table:
    """Rows: families, with the tuning result of each learning rate."""
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


def ranges(problem: str) -> Table:
    """Rows: learning rates; columns: rules, with the results of three seeds."""
    data = results.read(f"training_{problem}")
    runs = [row for row in data["rows"] if row["stage"] == "range"]
    names = list(dict.fromkeys(row["optimizer"] for row in runs))
    digits = 3 if data["provenance"]["larger_is_better"] else 1
    table = []
    for rate in sorted({row["learning_rate"] for row in runs}):
        cells = []
        for name in names:
            wanted = {"learning_rate": rate, "optimizer": name}
            own = [row["final"] for row in runs if wanted.items() <= row.items()]
            cells.append(
                ", ".join("diverged" if v is None else f"{v:.{digits}f}" for v in own)
            )
        table.append([f"{rate:g}", *cells])
    return ["learning rate", *names], table


def lengths(problem: str) -> Table:
    """Rows: directions and lengths."""
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
                mean_and_seeds([r["final"] for r in runs], 4 if larger else 1),
            ]
        )
    return ["direction", "length", "rate", "at the end, mean (seeds)"], table


def start_study() -> Table:
    """Rows: rates and starts; columns: mean losses of runs that did not diverge."""
    table = []
    rows = results.read("start_study")["rows"]
    for row in sorted(rows, key=lambda row: row["learning_rate"]):
        cells = []
        for time in ("early", "late"):
            good = [value for value in row[time] if value is not None]
            cells.append(f"{np.mean(good):.3f}" if good else "")
        diverged = sum(value is None for value in row["late"])
        table.append(
            [
                f"{row['learning_rate']:g}",
                f"{row['start']:g}",
                *cells,
                f"{diverged} of {len(row['late'])}",
            ]
        )
    return ["rate", "start", "steps 30 to 60", "last 50", "diverged"], table


def _at(row: dict[str, Any], key: str, refreshes: int) -> Any:
    return row[key][row["refreshes"].index(refreshes)]


def _recorded() -> list[dict[str, Any]]:
    """Rows of float32 on the gradients of networks and quadratics."""
    return [
        row
        for row in results.read("numerics_accuracy")["rows"]
        if row["arithmetic"] == "float32" and row["kind"] != "synthetic"
    ]


def quality() -> Table:
    """Cosine to exact Shampoo's direction; rows: rules; columns: refreshes."""
    rows = _recorded()
    table = []
    for rule in RULES:
        own = [row for row in rows if row["rule"] == rule]
        cells = []
        for refreshes in QUALITY_AFTER:
            cosines = [_at(row, "cosine", refreshes) or 0.0 for row in own]
            middle, least = float(np.median(cosines)), min(cosines)
            cells.append(f"{_number(middle)} ({_number(least)})")
        table.append([rule, *cells])
    after = (f"{n} refresh{'es'[: 2 * (n > 1)]}" for n in QUALITY_AFTER)
    return ["cosine, median (least) after", *after], table


def numerics_cosine() -> Table:
    """Cosine after 5 and 100 refreshes; rows: recorded layers; columns: rules."""
    rows = _recorded()
    table = []
    for stream in dict.fromkeys(row["stream"] for row in rows):
        own = {row["rule"]: row for row in rows if row["stream"] == stream}
        cells = [
            ", ".join(_number(_at(own[rule], "cosine", t)) for t in (5, 100))
            for rule in RULES
        ]
        bare = (_number(_at(own["composite"], "bare_cosine", t)) for t in (5, 100))
        table.append([stream, *cells, ", ".join(bare)])
    header = ["after 5, after 100 refreshes", *RULES, "composite to bare Shampoo"]
    return header, table


def numerics_arithmetic() -> Table:
    """Worst values of all streams; rows: rules and arithmetics."""
    rows = results.read("numerics_accuracy")["rows"]
    table = []
    for rule in (
        "paper",
        "congruence, sub-steps",
        "composite",
        "composite, 2 polynomials",
    ):
        for arithmetic in ("float32", "tf32", "bf16"):
            wanted = {"rule": rule, "arithmetic": arithmetic}
            own = [row for row in rows if wanted.items() <= row.items()]
            recorded = [row for row in own if row["kind"] != "synthetic"]
            cosines = [_at(row, "cosine", 100) for row in recorded]
            smallest = [value for row in own for value in row["smallest"]]
            asymmetry = [value for row in own for value in row["asymmetry"]]
            broken = sum(None in row["smallest"] for row in own)
            table.append(
                [
                    rule,
                    arithmetic,
                    _number(float(np.median([c or 0 for c in cosines]))),
                    _number(min(c or 0 for c in cosines)),
                    f"{min(v for v in smallest if v is not None):.2g}",
                    f"{max(v for v in asymmetry if v is not None):.2g}",
                    str(broken),
                ]
            )
    header = [
        "rule",
        "matrix products in",
        "cosine after 100, median",
        "the least",
        "smallest eigenvalue over the largest, the least",
        "largest asymmetry",
        "streams not finite",
    ]
    return header, table


def numerics_endurance() -> Table:
    """Worst values of all streams over 100,000 refreshes; rows: rules."""
    rows = results.read("numerics_endurance")["rows"]
    table = []
    for rule in dict.fromkeys(row["rule"] for row in rows):
        own = [row for row in rows if row["rule"] == rule]
        least = [row["smallest"] for row in own if row["smallest"] is not None]
        table.append(
            [
                rule,
                str(len(own)),
                f"{max(row['asymmetry'] for row in own):.2g}",
                f"{min(least):.2g}",
                str(sum(value <= 0 for value in least)),
                str(sum(row["non_finite"] > 0 for row in own)),
            ]
        )
    header = [
        "rule",
        "streams",
        "largest asymmetry",
        "smallest eigenvalue over the largest, the least",
        "streams with an indefinite root",
        "with one that is not finite",
    ]
    return header, table


def numerics_terms() -> Table:
    """The paper's rule with 1 to 4 terms, and compositions."""
    rows = results.read("numerics_terms")["rows"]
    table = []
    for row in rows:
        if row["kind"] == "composite":
            if row["degree"] not in (4, "1, 4, 4") or row["smallest"] != 3e-5:
                continue
            name = f"composite, {row['stages']} of degree {row['degree']}"
        else:
            name = f"{row['kind']}, {row['terms']} term{'s'[: row['terms'] != 1]}"
        table.append(
            [
                name,
                str(row["products"]),
                f"{row['error']:.1e}",
                f"{_number(row['cosine_5'])} ({_number(row['least_cosine_5'])})",
                f"{_number(row['cosine_100'])} ({_number(row['least_cosine_100'])})",
            ]
        )
    header = [
        "",
        "products",
        "largest error of the function",
        "cosine after 5, median (least)",
        "after 100",
    ]
    return header, table


def _number(value: Any, digits: int = 3) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "not finite"
    return f"{value:.{digits}f}"


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
    for variant in VARIANTS:
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


def whitening_cost() -> Table:
    """Rows: models; columns: intervals, and the state over AdamW's."""
    rows = results.read("rule_cost")["rows"]
    intervals = list(rows[0]["whitening_ratios"])
    table = [
        [
            row["model"],
            *(f"{row['whitening_ratios'][k]:.2f}" for k in intervals),
            *(
                f"{row[rule]['state_bytes'] / row['adamw_bytes']:.2f}"
                for rule in ("series", "whitening")
            ),
        ]
        for row in rows
    ]
    header = ["FLOPs over the paper's rule's", *(f"interval {k}" for k in intervals)]
    return [*header, "state over AdamW's, paper's rule", "whitening"], table
