"""Makes the tables that compare the whitening rule with its peers on all workloads."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.stats

from benchmarks.harness import rates, results
from benchmarks.harness.summary import paired_ratio
from benchmarks.reports import costs, workloads
from benchmarks.reports.rules import steps_to_target
from examples.shared import targets

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
        reached = steps_to_target(row, facts)
        steps.setdefault(row["optimizer"], {})[row["seed"]] = reached
    return Runs(finals, steps, facts["target"], facts["larger_is_better"])


def _transformer() -> Runs:
    target, runs = costs.language_model()
    pairs = list(runs.items())
    steps, finals = (
        {name: {seed: run[i] for seed, run in seeds.items()} for name, seeds in pairs}
        for i in (0, 1)
    )
    return Runs(finals, steps, target, False)


def _workload(name: str) -> Runs:
    comparison, data = workloads.read(name)
    finals: dict[str, dict[int, float]] = {}
    steps: dict[str, dict[int, int | None]] = {}
    for row in data["rows"]:
        if row["stage"] != "final":
            continue
        finals.setdefault(row["optimizer"], {})[row["seed"]] = row["final"]
        index = targets.reached(row["curve"], comparison.target)
        reached = None if index is None else row["steps"][index]
        steps.setdefault(row["optimizer"], {})[row["seed"]] = reached
    return Runs(finals, steps, comparison.target, True)


# Names in the examples' workloads. Muon, SOAP and steps by shape have SGD's decay, as
# whitening has: with AdamW's, several times less, none of them ends higher in the mean.
EXAMPLE = {
    "muon": "muon, SGD's decay",
    "soap": "soap, SGD's decay",
    "shampoo": "shampoo/sgd-schedule",
    "paper": "jorge/sgd-schedule",
    "whitening": "jorge-whitening/sgd-schedule",
    "twice": "jorge-whitening, twice SGD's length/sgd-schedule",
    "by shape": "by-shape, SGD's decay/default",
    "by shape, tuned": "by-shape, SGD's decay",
    "whitening, tuned": "whitening, tuned",
}
# There, steps by shape were tuned with AdamW's decay alone.
SCENES = EXAMPLE | {"by shape, tuned": "by-shape", "of its decay": "by-shape/default"}
# Title, reader, digits, names of the columns' optimizers where they differ.
WORKLOADS: dict[str, tuple[Callable[[], Runs], int, dict[str, str]]] = {
    "small ResNet, CIFAR-10, accuracy": (lambda: _problem("resnet"), 3, {}),
    "ResNet-8, CIFAR-10, accuracy": (lambda: _workload("classification"), 3, EXAMPLE),
    "thin DeepLabv3, scenes, mean IoU": (
        lambda: _workload("segmentation"),
        3,
        SCENES,
    ),
    "thin Mask R-CNN, scenes, AP of boxes": (
        lambda: _workload("detection"),
        3,
        EXAMPLE,
    ),
    "transformer, bytes, loss": (
        _transformer,
        3,
        {
            "muon": "muon, tuned",
            # As Muon and Jorge do, and better than with it preconditioned.
            "soap": "soap, last layer left to Adam",
            "shampoo": "shampoo",
            "paper": "jorge",
            "whitening": "jorge, whitening",
            "twice": "jorge, whitening",
            "once": "jorge, whitening, Adam's own length",
            "whitening, tuned": "jorge, whitening, tuned",
            "by shape": "jorge, by shape",
            "by shape, tuned": "jorge, by shape, tuned",
            "whole layers": "jorge, whitening, whole layers",
        },
    ),
    "MLP, Fashion-MNIST, accuracy": (lambda: _problem("mlp"), 4, {}),
    "autoencoder, Fashion-MNIST, loss": (lambda: _problem("autoencoder"), 1, {}),
    "the same, 3,000 steps": (lambda: _problem("autoencoder_long"), 1, {}),
}
RATE = f"rate {rates.BY_SHAPE:g}"
COLUMNS = {
    "sgd": "SGD, tuned",
    "adamw": "AdamW, tuned",
    "muon": "Muon, tuned",
    "soap": "SOAP, tuned",
    "kl-shampoo": "KL-Shampoo, tuned",
    "psgd": "PSGD-Kron, tuned",
    "shampoo": "Shampoo, exact roots",
    "paper": "Jorge, paper's rule",
    "whitening": "Jorge, whitening",
    "by shape": f"the same by shape, {RATE}",
}
NAMES = {  # in the studies of benchmarks/problems
    "shampoo": "shampoo@10",
    "paper": "paper@10/sgd-rate",
    "whitening": "whitening@10/sgd-rate",
    "twice": "whitening, twice SGD's length@10/sgd-rate",
    "whitening, tuned": "whitening@10",
    "by shape": "by-shape@10/default",
    "by shape, tuned": "by-shape@10",
    "whole layers": "by-shape, whole layers@10/default",
    "whole layers, tuned": "by-shape, whole layers@10",
    "as Muon, tuned": "by-shape, as Muon@1",
}
OURS = {
    "whitening": "whitening, single-shot",
    "whitening, tuned": "the same, tuned",
    "by shape": f"by shape, {RATE}",
    "by shape, tuned": "the same, tuned",
    "whole layers": f"whole layers, {RATE} (transformer: from AdamW)",
    "whole layers, tuned": "whole layers, tuned",
    "as Muon, tuned": "whole, last layer left to Adam, interval 1, tuned",
}
RIVALS = ("muon", "soap", "kl-shampoo", "psgd")

FEWEST = 3  # seeds that a cell needs


def headline() -> Table:
    """Rows: workloads; columns: optimizers; the mean over seeds."""
    others = ("soap", "kl-shampoo", "psgd", "shampoo")
    return _means([key for key in COLUMNS if key not in others])


def peers() -> Table:
    """The same with all peers."""
    return _means(list(COLUMNS))


def _means(columns: list[str]) -> Table:
    table = []
    for title, (read, digits, names) in WORKLOADS.items():
        runs, cells = read(), []
        for key in columns:
            own = _finals(runs, names, key)
            few = f" ({len(own)} seeds)" if len(own) != 5 else ""
            cells.append(f"{_mean(own):.{digits}f}{few}" if len(own) >= FEWEST else "")
        table.append([title, *cells])
    return ["mean over 5 seeds", *(COLUMNS[key] for key in columns)], table


def _finals(runs: Runs, names: dict[str, str], key: str) -> dict[int, float]:
    return runs.finals.get(names.get(key, NAMES.get(key, key)), {})


def _mean(finals: dict[int, float]) -> float:
    return float(np.mean(list(finals.values())))


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
                f"{_mean(seeds):.{digits}f} "
                f"({', '.join(f'{seeds[s]:.{digits}f}' for s in sorted(seeds))})",
                {"sgd": "SGD", "adamw": "AdamW"}[base],
                _difference(seeds, runs.finals[base], digits),
                paired_ratio(runs.steps[ours], runs.steps[base]),
                _difference(seeds, runs.finals.get(muon, {}), digits),
            ]
        )
    header = ["workload", "whitening, mean (seeds)", "baseline", "minus the baseline"]
    return [*header, "steps to its target, ratio", "minus tuned Muon"], table


def once_or_twice() -> Table:
    """Whitened steps of the baseline's length and of twice that; rows: workloads."""
    table = []
    for title, (read, digits, names) in WORKLOADS.items():
        runs = read()
        base = "adamw" if title.startswith("transformer") else "sgd"
        once = "once" if "once" in names else "whitening"
        cells = [
            ", ".join(f"{own[seed]:.{digits}f}" for seed in sorted(own)) or "not run"
            for own in (_finals(runs, names, key) for key in (base, once, "twice"))
        ]
        table.append([title, *cells])
    header = ["at the end, by seed", "SGD (transformer: AdamW)"]
    return [*header, "whitening at its length", "at twice its length"], table


def tuned() -> Table:
    """The best of Jorge's lengths and tiles against the best tuned peer."""
    table = []
    for title, (read, digits, names) in WORKLOADS.items():
        runs = read()
        done = {key: _finals(runs, names, key) for key in (*OURS, *RIVALS)}
        done = {key: own for key, own in done.items() if len(own) >= FEWEST}
        sign = -1 if runs.larger_is_better else 1
        ranked = sorted(done, key=lambda key: sign * _mean(done[key]))
        ours = next((key for key in ranked if key in OURS), None)
        peer = next((key for key in ranked if key in RIVALS), None)
        if ours is None or peer is None:
            continue
        table.append(
            [
                title,
                *(
                    f"{_mean(done[key]):.{digits}f}" if key in done else "not run"
                    for key in OURS
                ),
                f"{COLUMNS[peer][: -len(', tuned')]}, {_mean(done[peer]):.{digits}f}",
                _difference(done[ours], done[peer], digits),
            ]
        )
    header = ["mean over seeds", *OURS.values(), "best of four peers, tuned"]
    return [*header, "the best of Jorge's minus that peer"], table


def default_rate() -> Table:
    """Steps by shape at the default rate against the tuned rate."""
    table = []
    for title, (read, digits, names) in WORKLOADS.items():
        runs = read()
        default = "of its decay" if "of its decay" in names else "by shape"
        pair = [_finals(runs, names, key) for key in (default, "by shape, tuned")]
        if len(set(pair[0]) & set(pair[1])) < FEWEST:
            continue
        table.append([title, *_default_against_best(*pair, digits)])
        if title in SEARCHED:
            name, best = SEARCHED[title]
            pair = [
                own | searched(name, rate)
                for own, rate in zip(pair, (rates.BY_SHAPE, best), strict=True)
            ]
            more = f"the same, with the {len(pair[0]) - 5} seeds of the search"
            table.append([more, *_default_against_best(*pair, digits)])
    header = ["by shape, mean over seeds", RATE, "tuned rate"]
    return [*header, "relative difference", "paired difference"], table


# Workloads whose tuned rate ran on many seeds of the search, and that rate.
SEARCHED = {
    "small ResNet, CIFAR-10, accuracy": ("resnet", 0.05),
    "transformer, bytes, loss": ("lm", 0.02),
}


def searched(problem: str, rate: float) -> dict[int, float]:
    """Returns the finals of the search for the default rate, by seed."""
    key = {"problem": problem, "learning_rate": rate}
    rows = results.rows("default_rate")
    return {row["seed"]: row["final"] for row in rows if key.items() <= row.items()}


def _default_against_best(
    default: dict[int, float], best: dict[int, float], digits: int
) -> list[str]:
    seeds = sorted(set(default) & set(best))
    ours, theirs = (_mean({s: own[s] for s in seeds}) for own in (default, best))
    return [
        f"{ours:.{digits}f}",
        f"{theirs:.{digits}f}",
        f"{ours / theirs - 1:+.1%}",
        _difference(default, best, digits),
    ]


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
