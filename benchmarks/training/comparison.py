"""Compares steps to a target of Jorge with those of first- and second-order peers.

Question: how many steps does each optimizer need to 0.99 of what tuned SGD reaches?
Method: the problems of benchmarks/problems, each with a cosine schedule to 0, momentum
0.9 and no weight decay for all. Each family is tuned on one seed, by the metric at the
end of the run: five learning rates of the ladder 1, 2, 5, 10, ...; while the best is at
an edge, two more beyond it; in the end all families have tried equally many. Jorge and
Shampoo are tuned at interval 10 and keep that rate at all intervals; names that end in
/sgd-rate take SGD's instead, and those that end in /default have the rate 0.0425 on all
problems ("whole layers": up to 1024 x 1024, in place of tiles of 256 x 256; "as Muon":
the same, and the last layer left to Adam). Muon leaves vectors and the last layer to
Adam at AdamW's tuned rate; SOAP and KL-Shampoo leave vectors to Adam at their own rate.
Then five other seeds, the same batches and the same first parameters for all. The
longer runs of the autoencoder have the rates that were tuned on its short ones. The
metric is taken at each 1% of a run. The target is 0.99 of the mean metric of SGD's
seeds at the end (a loss: that over 0.99). Ratios of steps are paired by seed: geometric
mean and 95% t-interval of the logarithms.
Answer: docs/results/training.md, from benchmarks/results/training_*.json.

    python -m benchmarks.training.comparison PROBLEM [--tune | --final]

Runs that the JSON has are not repeated. Without a stage, it only prints.
"""

import argparse
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.baselines.kl_shampoo import scale_by_kl_shampoo
from benchmarks.baselines.matrices import with_adam
from benchmarks.baselines.muon import muon
from benchmarks.baselines.psgd import psgd
from benchmarks.baselines.soap import scale_by_soap
from benchmarks.harness import rates, results
from benchmarks.harness.summary import paired_ratio, steps_to
from benchmarks.problems import PROBLEMS, Problem
from benchmarks.problems.training import Curve, trainer
from examples.shared.shampoo import Shampoo
from jorge_optax import Tiling, Whitening, jorge, lengths

MOMENTUM, B2 = 0.9, 0.95
TUNING_SEED, SEEDS = 100, results.sized((0, 1, 2, 3, 4), (0,))
BESIDE = results.sized(2, 0)  # rates tried first on either side of the middle one
SGD_RATE, DEFAULT = "/sgd-rate", "/default"
TWICE = "whitening, twice SGD's length"
WHOLE, AS_MUON = "by-shape, whole layers", "by-shape, as Muon"
ROOTS = ("paper", "shampoo")
WHITENING = tuple(
    f"{family}@{k}{SGD_RATE}" for family in (TWICE, "whitening") for k in (10, 50)
)
PEERS = ("sgd", "adamw", "muon", "psgd", "soap", "kl-shampoo")
TUNED = {  # name of a family to that of the optimizer it is tuned by
    **{name: name for name in PEERS},
    **{name: f"{name}@10" for name in (*ROOTS, "whitening", "by-shape", WHOLE)},
    AS_MUON: f"{AS_MUON}@1",
}
CENTRAL_RATES = {  # others: the problem's
    **{"adamw": 2e-3, "muon": 2e-2, "psgd": 2e-3, "soap": 5e-3, "kl-shampoo": 5e-3},
    **dict.fromkeys(("by-shape", WHOLE, AS_MUON), 5e-2),
}
FINAL = (
    *PEERS,
    *(f"{name}@{k}{SGD_RATE}" for k in (10, 50) for name in ROOTS),
    *WHITENING,
    *(f"{name}@10" for name in (*ROOTS, "whitening", "by-shape", WHOLE)),
    *(f"{name}@10{DEFAULT}" for name in ("by-shape", WHOLE)),
    f"{AS_MUON}@1",
)

Row = dict[str, Any]


def optimizer(
    name: str,
    learning_rate: jax.typing.ArrayLike,
    steps: int,
    problem: Problem,
    adam_rate: float | None = None,
) -> optax.GradientTransformation:
    """The optimizer of a name such as "sgd" or "paper@10".

    Args:
      name: family, and the interval after "@".
      learning_rate: may be traced.
      steps: of the cosine schedule.
      problem: what is trained.
      adam_rate: of the leaves that Muon leaves to Adam.

    Returns:
      The optimizer.
    """
    schedule = optax.cosine_decay_schedule(learning_rate, steps)
    family, _, k = name.partition("@")
    if family == "sgd":
        return optax.sgd(schedule, MOMENTUM)
    if family == "adamw":
        return optax.adamw(schedule, b1=MOMENTUM, b2=B2, weight_decay=0.0)
    if family == "muon":
        numbers = problem.muon_dimension_numbers
        others = adam_rate and optax.cosine_decay_schedule(adam_rate, steps)
        return muon(schedule, numbers, MOMENTUM, others)
    if family in ("soap", "kl-shampoo"):
        make = scale_by_soap if family == "soap" else scale_by_kl_shampoo
        return with_adam(make(MOMENTUM), schedule, b1=MOMENTUM, b2=B2)
    if family == "psgd":
        return psgd(schedule, MOMENTUM)
    if family.startswith("by-shape"):
        tiling = Tiling(
            256 if family == "by-shape" else 1024,
            leave_out=problem.adamw_leaves if family == AS_MUON else (),
        )
        return jorge(
            schedule,
            MOMENTUM,
            rule=Whitening(),
            grafting=lengths.Shape(),
            update_interval=int(k),
            tiling=tiling,
        )
    return _with_roots(family)(schedule, MOMENTUM, update_interval=int(k))


def _with_roots(family: str) -> Callable[..., optax.GradientTransformation]:
    if family == "paper":
        return jorge
    if family == "whitening":
        return functools.partial(jorge, rule=Whitening())
    if family == TWICE:
        return functools.partial(jorge, rule=Whitening(), grafting=lengths.SGD(2.0))
    if family == "shampoo":
        return functools.partial(jorge, rule=Shampoo())
    raise ValueError(f"No optimizer {family!r}; there are {', '.join(TUNED)}.")


@functools.cache
def _trainer(
    problem: Problem, name: str, adam_rate: float | None, evaluations: int
) -> Callable[[float, int], Curve]:
    return trainer(
        problem,
        lambda rate: optimizer(name, rate, problem.steps, problem, adam_rate),
        evaluations,
    )


class Study:
    """The runs of one problem, kept in its JSON."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.file = f"training_{problem.name}"

    def rows(self, stage: str) -> list[Row]:
        """Returns the runs of a stage."""
        rows = self._read()
        if stage == "tune" and self.problem.tuned_on:
            rows = results.rows(f"training_{self.problem.tuned_on}")
        return [row for row in rows if row["stage"] == stage]

    def run(self, stage: str, name: str, rate: float, seed: int) -> None:
        """Trains once, unless the JSON has the run."""
        rows = self._read()
        row = dict(optimizer=name, stage=stage, learning_rate=rate, seed=seed)
        if any(row.items() <= old.items() for old in rows):
            return
        plain = name.partition("/")[0]
        same = {"learning_rate": rate, "seed": seed}
        curves = [
            old["curve"]
            for old in rows
            if same.items() <= old.items()
            and old["optimizer"].partition("/")[0] == plain
        ]
        # Tuning takes the end alone; evaluations are most of the time of small runs.
        evaluations = 4 if stage == "tune" else 100
        curve = curves[0] if curves else self.train(name, rate, seed, evaluations)
        print(self.problem.name, *row.values(), curve[-1], flush=True)
        with results.lock():
            self._write([*self._read(), {**row, "final": curve[-1], "curve": curve}])

    def train(self, name: str, rate: float, seed: int, evaluations: int) -> Curve:
        """Trains once."""
        plain = name.partition("/")[0]
        adam_rate = self.best("adamw") if plain == "muon" else None
        return _trainer(self.problem, plain, adam_rate, evaluations)(rate, seed)

    def best(self, family: str) -> float:
        """Returns the learning rate with the best end."""
        runs = [r for r in self.rows("tune") if r["optimizer"] == TUNED[family]]
        if not runs:
            raise ValueError(f"{family} is not tuned yet: run --tune first.")
        return min(runs, key=self.badness)["learning_rate"]

    def rate(self, name: str) -> float:
        """Returns the learning rate with which an optimizer runs in the end."""
        if name.endswith(DEFAULT):
            return rates.BY_SHAPE
        family = name.partition("@")[0]
        return self.best("sgd" if name.endswith(SGD_RATE) else family)

    def badness(self, row: Row) -> float:
        """Rates the end of a run; smaller is better."""
        if row["final"] is None:
            return math.inf
        return -row["final"] if self.problem.larger_is_better else row["final"]

    def tune(self, families: list[str]) -> None:
        """Tunes until no best rate is at an edge and all tried equally many."""
        rates.search(
            {family: self._first_rungs(family) for family in families},
            lambda family, rate: self.run("tune", TUNED[family], rate, TUNING_SEED),
            self.best,
            beyond=2,
            widen=not results.SMOKE,
        )

    def final(self, names: list[str]) -> None:
        """Runs seed by seed, so that an interrupted study is balanced."""
        for seed in SEEDS:
            for name in names:
                self.run("final", name, self.rate(name), seed)

    def target(self, rows: list[Row]) -> float | None:
        """Returns the target from the final runs of SGD; None until all are done."""
        sgd = {"stage": "final", "optimizer": "sgd"}
        finals = [row["final"] for row in rows if sgd.items() <= row.items()]
        if len(finals) < len(SEEDS):
            return None
        mean = float(np.mean(finals))
        return 0.99 * mean if self.problem.larger_is_better else mean / 0.99

    def steps_to(self, target: float, name: str) -> dict[int, int | None]:
        """Returns, by seed, the step from which on a run stays at the target."""
        return {
            row["seed"]: steps_to(
                target,
                row["curve"],
                larger_is_better=self.problem.larger_is_better,
                every=self.problem.steps_between_evaluations,
            )
            for row in self.rows("final")
            if row["optimizer"] == name
        }

    def summary(self) -> None:
        """Prints the results so far."""
        print(f"\n{self.problem.name}, {self.problem.metric} by learning rate:")
        for family, name in TUNED.items():
            runs = [r for r in self.rows("tune") if r["optimizer"] == name]
            runs.sort(key=lambda row: row["learning_rate"])
            pairs = (f"{r['learning_rate']:g}: {r['final']}" for r in runs)
            print(f"  {family:<10}", ", ".join(pairs))
        target = self.target(self._read())
        if target is None:
            return
        print(f"target {target:.4f}: mean at the end, steps of each seed, ratios")
        for name in dict.fromkeys(r["optimizer"] for r in self.rows("final")):
            runs = [r for r in self.rows("final") if r["optimizer"] == name]
            finals = [row["final"] for row in runs if row["final"] is not None]
            steps = self.steps_to(target, name)
            text = f"  {name:<22}{np.mean(finals or math.nan):9.4f} "
            text += f"{' '.join(str(s or '-') for s in steps.values()):<20}"
            family, at, k = name.partition("@")
            for other in ("shampoo", "paper"):
                if at and family != other:
                    ratio = paired_ratio(steps, self.steps_to(target, f"{other}@{k}"))
                    text += f" / {other}: {ratio}"
            print(text)

    def _first_rungs(self, family: str) -> set[int]:
        middle = CENTRAL_RATES.get(family, self.problem.central_rate)
        runs = [r for r in self.rows("tune") if r["optimizer"] == TUNED[family]]
        before = {rates.rung_of(row["learning_rate"]) for row in runs}
        return rates.around(middle, BESIDE) | before

    def _read(self) -> list[Row]:
        return results.rows(self.file)

    def _write(self, rows: list[Row]) -> None:
        tuning = [row["optimizer"] for row in rows if row["stage"] == "tune"]
        results.write(
            self.file,
            rows,
            steps=self.problem.steps,
            metric=self.problem.metric,
            larger_is_better=self.problem.larger_is_better,
            tuning_seed=TUNING_SEED,
            target=self.target(rows),
            rates_tried={name: tuning.count(name) for name in sorted(set(tuning))},
        )


def main() -> None:
    """Runs a stage, and prints the summary."""
    parser = argparse.ArgumentParser()
    parser.add_argument("problem", choices=PROBLEMS)
    stage = parser.add_mutually_exclusive_group()
    stage.add_argument("--tune", action="store_true", help="choose learning rates")
    stage.add_argument("--final", action="store_true", help="the seeds that count")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="families, or names")
    arguments = parser.parse_args()
    study = Study(PROBLEMS[arguments.problem]())
    if arguments.tune:
        study.tune(arguments.only or list(TUNED))
    if arguments.final:
        study.final(arguments.only or list(FINAL))
    study.summary()


if __name__ == "__main__":
    main()
