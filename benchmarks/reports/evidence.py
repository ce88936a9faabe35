"""Makes the tables that compare the whitening rule with its peers on all workloads."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.stats

from benchmarks.harness import results
from benchmarks.harness.summary import paired_ratio, steps_to
from benchmarks.reports import workloads

Table = tuple[list[str], list[list[str]]]


class Runs(NamedTuple):
    """The final runs of one workload.

    Attributes:
      finals: Optimizer to its final metric by seed.
      steps: Optimizer to its steps to the target by seed, None for a miss.
      target: 0.99 of the baseline's mean (a loss: that over 0.99).
      larger_is_better: Of the metric.
    """

    finals: dict[str, dict[int, float]]
    steps: dict[str, dict[int, int | None]]
    target: float
    larger_is_better: bool


def _problem(name: str) -> Runs:
    data = results.read(f"training_{name}")
    facts = data["provenance"]
    finals: dict[str, dict[int, float]] = {}
    steps: dict[str, dict[int, int | None]] = {}
    for row in data["rows"]:
        if row["stage"] != "final" or row["final"] is None:
            continue
        finals.setdefault(row["optimizer"], {})[row["seed"]] = row["final"]
        steps.setdefault(row["optimizer"], {})[row["seed"]] = steps_to(
            facts["target"],
            row["curve"],
            larger_is_better=facts["larger_is_better"],
            every=facts["steps"] // 100,
        )
    return Runs(finals, steps, facts["target"], facts["larger_is_better"])


def _transformer() -> Runs:
    rows = [r for r in results.read("adamw_study")["rows"] if r["stage"] == "final"]
    finals: dict[str, dict[int, float]] = {}
    steps: dict[str, dict[int, int | None]] = {}
    adamw = [row["curve"][-1][1] for row in rows if row["variant"] == "adamw"]
    target = float(np.mean(adamw)) / 0.99
    for row in rows:
        finals.setdefault(row["variant"], {})[row["seed"]] = row["curve"][-1][1]
        crossing = next((s for s, loss in row["curve"] if loss <= target), None)
        steps.setdefault(row["variant"], {})[row["seed"]] = crossing
    return Runs(finals, steps, target, False)


def _segmentation() -> Runs:
    comparison, data = workloads.read("segmentation")
    finals: dict[str, dict[int, float]] = {}
    steps: dict[str, dict[int, int | None]] = {}
    for row in data["rows"]:
        if row["stage"] != "final":
            continue
        finals.setdefault(row["optimizer"], {})[row["seed"]] = row["final"]
        pairs = zip(row["steps"], row["curve"], strict=True)
        steps.setdefault(row["optimizer"], {})[row["seed"]] = next(
            (s for s, v in pairs if v is not None and v >= comparison.target), None
        )
    return Runs(finals, steps, comparison.target, True)


# Title, reader, digits, names of the columns' optimizers where they differ.
WORKLOADS: dict[str, tuple[Callable[[], Runs], int, dict[str, str]]] = {
    "small ResNet, CIFAR-10, accuracy": (lambda: _problem("resnet"), 3, {}),
    "thin DeepLabv3, scenes, mean IoU": (
        _segmentation,
        3,
        {"paper": "jorge/sgd-schedule", "whitening": "jorge-whitening/sgd-schedule"},
    ),
    "transformer, bytes, loss": (
        _transformer,
        3,
        {
            "muon": "muon, tuned",
            "paper": "jorge",
            "whitening": "jorge, whitening",
            "by shape": "jorge, by shape",
        },
    ),
    "MLP, Fashion-MNIST, accuracy": (lambda: _problem("mlp"), 4, {}),
    "autoencoder, Fashion-MNIST, loss": (lambda: _problem("autoencoder"), 1, {}),
}
COLUMNS = {
    "sgd": "SGD, tuned",
    "adamw": "AdamW, tuned",
    "muon": "Muon, tuned",
    "soap": "SOAP, tuned",
    "kl-shampoo": "KL-Shampoo, tuned",
    "psgd": "PSGD-Kron, tuned",
    "paper": "Jorge, paper's rule",
    "whitening": "Jorge, whitening",
    "by shape": "the same by shape, rate 0.05",
}
NAMES = {  # in the studies of benchmarks/problems
    "paper": "paper@10/sgd-rate",
    "whitening": "whitening@10/sgd-rate",
    "by shape": "by-shape@10/default",
}


FEWEST = 3  # seeds that a cell needs


def headline() -> Table:
    """Rows: workloads; columns: optimizers; the mean over seeds."""
    return _means([key for key in COLUMNS if key not in ("soap", "kl-shampoo", "psgd")])


def peers() -> Table:
    """The same with all peers."""
    return _means(list(COLUMNS))


def _means(columns: list[str]) -> Table:
    table = []
    for title, (read, digits, names) in WORKLOADS.items():
        runs, cells = read(), []
        for key in columns:
            own = runs.finals.get(names.get(key, NAMES.get(key, key)), {})
            few = f" ({len(own)} seeds)" if len(own) != 5 else ""
            values = list(own.values())
            known = len(own) >= FEWEST
            cells.append(f"{np.mean(values):.{digits}f}{few}" if known else "")
        table.append([title, *cells])
    return ["mean over 5 seeds", *(COLUMNS[key] for key in columns)], table


def paired() -> Table:
    """Whitening, single-shot, against the baseline and tuned Muon, paired by seed."""
    table = []
    for title, (read, digits, names) in WORKLOADS.items():
        runs = read()
        ours = names.get("whitening", NAMES["whitening"])
        base = "adamw" if title.startswith("transformer") else "sgd"
        muon = names.get("muon", "muon")
        seeds = runs.finals.get(ours, {})
        if not seeds:
            continue
        table.append(
            [
                title,
                f"{np.mean(list(seeds.values())):.{digits}f} "
                f"({', '.join(f'{seeds[s]:.{digits}f}' for s in sorted(seeds))})",
                {"sgd": "SGD", "adamw": "AdamW"}[base],
                _difference(seeds, runs.finals[base], digits),
                paired_ratio(runs.steps[ours], runs.steps[base]),
                _difference(seeds, runs.finals.get(muon, {}), digits),
            ]
        )
    header = ["workload", "whitening, mean (seeds)", "baseline", "minus the baseline"]
    return [*header, "steps to its target, ratio", "minus tuned Muon"], table


def _difference(ours: dict[int, float], theirs: dict[int, float], digits: int) -> str:
    """Mean and 95% t-interval of the difference, paired by seed."""
    seeds = sorted(set(ours) & set(theirs))
    if len(seeds) < 2:
        return ""
    gaps = np.array([ours[seed] - theirs[seed] for seed in seeds])
    spread = scipy.stats.t.ppf(0.975, len(gaps) - 1) * scipy.stats.sem(gaps)
    mean = gaps.mean()
    low, high = (f"{mean + sign * spread:+.{digits}f}" for sign in (-1, 1))
    return f"{mean:+.{digits}f} [{low}, {high}]"
