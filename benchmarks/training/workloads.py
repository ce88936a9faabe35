"""Compares single-shot Jorge with SGD, AdamW and exact Shampoo on the examples.

Question: how many steps and seconds does each need to 0.99 of what tuned SGD reaches,
and where does it end? Does Jorge want the step decay in thirds of the paper, or SGD's
own schedule?
Method: the examples as a user runs them (`examples.classification`, configuration
cifar10-16px; `examples.segmentation`, configuration scenes). SGD and AdamW are tuned on
one seed: five learning rates of the ladder 1, 2, 5, ... around a middle, more where the
best is at the edge, and as many for the other; SGD's schedule is a cosine or a
polynomial, as in the references. What they found is in the configurations. Jorge and
Shampoo are not tuned. Then three other seeds; for each seed all start from the same
parameters and see the same batches. The target is 0.99 of the mean of SGD's final
metric. Last, whitening with SGD's schedule, but in the share of SGD's steps
that the paper needed to SGD's accuracy (0.73 and 0.60). Seconds are those of the steps,
each run on one core of the same machine.
Answer: docs/results.md, from benchmarks/results/workload_*.json.

    python -m benchmarks.training.workloads WORKLOAD --tune|--final|--short
"""

import argparse
import dataclasses
import math
import pathlib
from typing import Any

from benchmarks.harness import rates, results
from examples.classification import configs as classification_configs
from examples.classification import train as classification
from examples.segmentation import configs as segmentation_configs
from examples.segmentation import train as segmentation
from examples.shared.config import Config, Run
from examples.shared.loop import train

TUNING_SEED, SEEDS = 100, results.sized((0, 1, 2), (0,))
BESIDE = results.sized(2, 0)  # rates tried first on either side of the middle one
MIDDLES = {
    "classification": {"sgd": 0.1, "adamw": 5e-3},
    "segmentation": {"sgd": 0.2, "adamw": 5e-3},
}
NAMES = ("sgd", "adamw", "shampoo", "jorge")
SCHEDULES = ("sgd/thirds", "jorge/sgd-schedule", "jorge-whitening/sgd-schedule")
SHORT = "jorge-whitening/sgd-schedule"  # what the short runs use
SHARES = {"classification": 0.73, "segmentation": 0.6}  # the paper's gains
WORKLOADS = {
    "classification": (
        classification_configs.CONFIGS["cifar10-16px"],
        classification.make_task,
    ),
    "segmentation": (segmentation_configs.CONFIGS["scenes"], segmentation.make_task),
}


class Workload:
    """The runs of one workload, kept in its JSON."""

    def __init__(self, name: str, folder: pathlib.Path):
        self.name, self.folder = name, folder
        self.config, self.make_task = WORKLOADS[name]
        if results.SMOKE:
            batch = self.config.batch_size
            self.config = dataclasses.replace(
                self.config,
                epochs=5,  # a share of them is 3 steps at least
                train_examples=batch,
                test_examples=batch,
                eval_every=1,
                checkpoint_every=None,
            )

    def run(
        self, stage: str, name: str, seed: int, config: Config, share: float = 1.0
    ) -> None:
        """One run, or nothing if it is there; of a share of the steps, if asked."""
        settings = config.adamw if name == "adamw" else config.sgd
        rate = settings.learning_rate
        key = dict(stage=stage, optimizer=name, learning_rate=rate, seed=seed)
        if share != 1:
            key["share"] = share
        if any(key.items() <= row.items() for row in self.rows()):
            return
        run_name = "-".join([stage, *name.split("/"), f"{rate:g}-{share:g}-{seed}"])
        task = self.make_task(config, seed=seed)
        steps = round(share * config.epochs * task.steps_per_epoch)
        place = self.folder / self.name / run_name
        rows = train(task, config, Run(name, seed, place, steps=steps))
        row = {
            **key,
            "final": rows[-1][task.metric],
            "compile_seconds": rows[-1]["compile_seconds"],
            "steps": [r["step"] for r in rows],
            "seconds": [round(r["seconds"], 2) for r in rows],
            "curve": [_rounded(r[task.metric]) for r in rows],
            "loss": [_rounded(r["loss"]) for r in rows],
        }
        with results.lock():
            results.write(
                f"workload_{self.name}",
                [*self.rows(), row],
                config=self.config.to_dict(),
                metric=task.metric,
                tuning_seed=TUNING_SEED,
            )

    def tune(self) -> None:
        """Tunes SGD and AdamW, with equally many rates for both."""
        rates.search(
            {
                name: rates.around(middle, BESIDE)
                for name, middle in MIDDLES[self.name].items()
            },
            self._try,
            self._best,
            widen=not results.SMOKE,
        )

    def _try(self, name: str, rate: float) -> None:
        settings = dataclasses.replace(getattr(self.config, name), learning_rate=rate)
        config = dataclasses.replace(self.config, **{name: settings})
        self.run("tune", name, TUNING_SEED, config)

    def _best(self, name: str) -> float:
        key = {"stage": "tune", "optimizer": name}
        runs = [row for row in self.rows() if key.items() <= row.items()]
        best = max(runs, key=lambda row: row["final"] or -math.inf)
        print(self.name, name, "best at", best["learning_rate"])
        return best["learning_rate"]

    def rows(self) -> list[dict[str, Any]]:
        """Returns all rows of the workload."""
        return results.rows(f"workload_{self.name}")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def main() -> None:
    """Runs a stage."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--tune", action="store_true", help="choose learning rates")
    parser.add_argument("--short", action="store_true", help="a share of the steps")
    parser.add_argument("--final", nargs="*", metavar="NAME", help="optimizers")
    folder = pathlib.Path(results.SMOKE or "runs") / "workloads"
    parser.add_argument("--folder", type=pathlib.Path, default=folder)
    arguments = parser.parse_args()
    workload = Workload(arguments.workload, arguments.folder)
    if arguments.tune:
        workload.tune()
    if arguments.short:
        for seed in SEEDS:
            share = SHARES[workload.name]
            workload.run("short", SHORT, seed, workload.config, share)
    if arguments.final is not None:
        for seed in SEEDS:
            for name in arguments.final or (*NAMES, *SCHEDULES):
                workload.run("final", name, seed, workload.config)


if __name__ == "__main__":
    main()
