"""Compares single-shot Jorge with SGD, AdamW and exact Shampoo on the examples.

Question: how many steps and seconds does each need to 0.99 of what tuned SGD reaches,
and where does it end? Does Jorge want the step decay in thirds of the paper, or SGD's
own schedule?
Method: the examples as a user runs them (`examples.classification`, configuration
cifar10-16px; `examples.segmentation` and `examples.detection`, configuration scenes).
SGD and AdamW are tuned on one seed: five learning rates of the ladder 1, 2, 5, ...
around a middle, more where the best is at the edge, and as many for the others (Muon,
PSGD-Kron, SOAP, KL-Shampoo and Jorge by shape among them, with AdamW's schedule, and
AdamW's decay per step; "whitening, tuned" is the whitening rule with SGD's schedule and
length at its own rate; "SGD's decay" is a peer with SGD's decay per step, and its tuned
rate; by-shape/default has the rate 0.0425, untuned; from-adamw is the whitening rule
with AdamW's settings, also at Adam's own length); SGD's schedule is a cosine or a
polynomial, as in the references. What SGD and AdamW found is in the configurations. The
other variants of Jorge, and Shampoo, are not tuned. Then five other seeds; for each
seed all start from the same parameters and see the same batches. The target is 0.99 of
the mean of SGD's final metric. Last, Jorge with SGD's schedule, but in the share of
SGD's steps that the paper needed to SGD's accuracy (0.73, 0.60 and 0.59). Seconds are
those of the steps, each run on one core of the same machine.
Answer: docs/results/training.md, from benchmarks/results/workload_*.json.

    python -m benchmarks.training.workloads WORKLOAD --tune|--final|--short
"""

import argparse
import dataclasses
import functools
import math
import pathlib
from typing import Any

import jax
import optax

from benchmarks.baselines.kl_shampoo import scale_by_kl_shampoo
from benchmarks.baselines.matrices import decay_after, with_adam
from benchmarks.baselines.muon import dimension_numbers, muon
from benchmarks.baselines.psgd import psgd
from benchmarks.baselines.soap import scale_by_soap
from benchmarks.harness import rates, results
from examples.classification import configs as classification_configs
from examples.classification import train as classification
from examples.detection import configs as detection_configs
from examples.detection import train as detection
from examples.segmentation import configs as segmentation_configs
from examples.segmentation import train as segmentation
from examples.shared import optimizers
from examples.shared.config import Config, Run
from examples.shared.loop import train
from jorge_optax import Whitening, from_adamw, jorge, lengths

TUNING_SEED, SEEDS = 100, results.sized((0, 1, 2, 3, 4), (0,))
BESIDE = results.sized(2, 0)  # rates tried first on either side of the middle one
MIDDLES = {
    "classification": {"sgd": 0.1, "adamw": 5e-3},
    "segmentation": {"sgd": 0.2, "adamw": 5e-3},
    "detection": {"sgd": 0.05, "adamw": 2e-3},
}
WHITENING, DECAY = "whitening, tuned", ", SGD's decay"
PEERS = {
    **{"muon": 2e-2, "soap": 5e-3, "kl-shampoo": 5e-3, "psgd": 2e-3, "by-shape": 0.05},
    **{WHITENING: 0.5, f"by-shape{DECAY}": 0.05},
}
DEFAULT = "/default"  # steps by shape, not tuned
FROM_ADAMW, OWN = "from-adamw", ", Adam's own length"
NAMES = ("sgd", "adamw", "shampoo", "jorge")
SCHEDULES = ("sgd/thirds", "jorge/sgd-schedule", "jorge-whitening/sgd-schedule")
SHAPE = f"by-shape{DEFAULT}"
WITH_DECAY = (f"muon{DECAY}", f"soap{DECAY}", f"by-shape{DECAY}{DEFAULT}")
SHORT = "jorge-whitening/sgd-schedule"  # what the short runs use
# The paper's gains.
SHARES = {"classification": 0.73, "segmentation": 0.6, "detection": 0.59}
WORKLOADS = {
    "classification": (
        classification_configs.CONFIGS["cifar10-16px"],
        classification.make_task,
    ),
    "segmentation": (segmentation_configs.CONFIGS["scenes"], segmentation.make_task),
    "detection": (detection_configs.CONFIGS["scenes"], detection.make_task),
}


def build(
    name: str,
    config: Config,
    *,
    steps: int,
    steps_per_epoch: int,
    rate: float | None = None,
) -> optimizers.Built:
    """Builds an optimizer of the examples, or a peer at a rate with AdamW's schedule.

    A peer's decay is such that its product with the rate is AdamW's, or SGD's.
    """
    family = optimizers.base_name(name)
    as_sgd, family = family.endswith(DECAY), family.removesuffix(DECAY)
    if family not in (*PEERS, FROM_ADAMW, FROM_ADAMW + OWN):
        return optimizers.build(
            name, config, steps=steps, steps_per_epoch=steps_per_epoch
        )
    if family == WHITENING:
        sgd = dataclasses.replace(config.sgd, learning_rate=rate)
        return optimizers.build(
            *(SHORT, dataclasses.replace(config, sgd=sgd)),
            steps=steps,
            steps_per_epoch=steps_per_epoch,
        )
    adamw, mask = config.adamw, None if config.decay_all else optimizers.kernels

    def schedule(peak: float) -> optax.Schedule:
        return optimizers.schedule(adamw.schedule, peak, steps, steps_per_epoch)

    if family.startswith(FROM_ADAMW):
        step = from_adamw(
            schedule(adamw.learning_rate),
            *(adamw.b1, adamw.b2),
            weight_decay=adamw.weight_decay,
            weight_decay_mask=mask,
            grafting=lengths.Adam(adamw.b2) if family.endswith(OWN) else "adam",
            update_interval=config.update_interval,
        )
        rate_of = schedule(adamw.learning_rate)
        return optimizers.Built(step, vars(adamw), rate_of, rooted=step)
    rate = PEERS[family] if rate is None else rate
    betas = dict(b1=adamw.b1, b2=0.95)
    if family == "muon":
        numbers = functools.partial(jax.tree.map, dimension_numbers)
        step = muon(schedule(rate), numbers, adamw.b1, schedule(adamw.learning_rate))
    elif family == "psgd":
        step = psgd(schedule(rate), adamw.b1)
    elif family == "by-shape":
        step = jorge(
            *(schedule(rate), adamw.b1),
            rule=Whitening(),
            grafting=lengths.Shape(),
            update_interval=config.update_interval,
        )
    else:
        make = scale_by_soap if family == "soap" else scale_by_kl_shampoo
        step = with_adam(make(adamw.b1), schedule(rate), **betas)
    decay = adamw.learning_rate * adamw.weight_decay
    if as_sgd:
        sgd = config.sgd
        decay = sgd.learning_rate * sgd.weight_decay / (1 - sgd.momentum)
    step = optax.chain(step, decay_after(decay / rate, schedule(rate), mask))
    return optimizers.Built(step, {"learning_rate": rate}, schedule(rate))


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
        self,
        stage: str,
        name: str,
        seed: int,
        config: Config,
        share: float = 1.0,
        rate: float | None = None,
    ) -> None:
        """One run, or nothing if it is there; of a share of the steps, if asked.

        The rate is a peer's; the others have that of the configuration.
        """
        settings = config.adamw if "adamw" in name else config.sgd
        if name.endswith(DEFAULT):
            rate = rates.BY_SHAPE
        rate = settings.learning_rate if rate is None else rate
        key = dict(stage=stage, optimizer=name, learning_rate=rate, seed=seed)
        if share != 1:
            key["share"] = share
            config = _shortened(config, share)
        if any(key.items() <= row.items() for row in self.rows()):
            return
        run_name = "-".join([stage, *name.split("/"), f"{rate:g}-{share:g}-{seed}"])
        task = self.make_task(config, seed=seed)
        steps = round(share * config.epochs * task.steps_per_epoch)
        place = self.folder / self.name / run_name
        run = Run(name, seed, place, steps=steps)
        rows = train(task, config, run, functools.partial(build, rate=rate))
        row = {
            **key,
            "final": rows[-1][task.metric],
            "last": rows[-1],
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

    def tune(self, names: list[str]) -> None:
        """Tunes SGD, AdamW and the peers, with equally many rates for all."""
        rates.search(
            {
                name: rates.around(middle, BESIDE)
                for name, middle in {**MIDDLES[self.name], **PEERS}.items()
                if name in names
            },
            self._try,
            self.best,
            widen=not results.SMOKE,
        )

    def _try(self, name: str, rate: float) -> None:
        if name in PEERS:
            self.run("tune", name, TUNING_SEED, self.config, rate=rate)
            return
        settings = dataclasses.replace(getattr(self.config, name), learning_rate=rate)
        config = dataclasses.replace(self.config, **{name: settings})
        self.run("tune", name, TUNING_SEED, config)

    def best(self, name: str) -> float:
        """Returns the best learning rate of those tried."""
        key = {"stage": "tune", "optimizer": name}
        runs = [row for row in self.rows() if key.items() <= row.items()]
        best = max(runs, key=lambda row: row["final"] or -math.inf)
        print(self.name, name, "best at", best["learning_rate"])
        return best["learning_rate"]

    def rows(self) -> list[dict[str, Any]]:
        """Returns all rows of the workload."""
        return results.rows(f"workload_{self.name}")


def _shortened(config: Config, share: float) -> Config:
    """Moves the drops of SGD's learning rate; other schedules follow the steps."""
    kept = config.sgd.schedule
    drops = tuple(share * epoch for epoch in kept.drops)
    schedule = dataclasses.replace(kept, drops=drops)
    sgd = dataclasses.replace(config.sgd, schedule=schedule)
    return dataclasses.replace(config, sgd=sgd)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def main() -> None:
    """Runs a stage."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--tune", nargs="*", metavar="NAME", help="choose rates of")
    parser.add_argument("--short", action="store_true", help="a share of the steps")
    parser.add_argument("--final", nargs="*", metavar="NAME", help="optimizers")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    folder = pathlib.Path(results.SMOKE or "runs") / "workloads"
    parser.add_argument("--folder", type=pathlib.Path, default=folder)
    arguments = parser.parse_args()
    workload = Workload(arguments.workload, arguments.folder)
    if arguments.tune is not None:
        workload.tune(arguments.tune or [*MIDDLES[workload.name], *PEERS])
    if arguments.short:
        for seed in arguments.seeds:
            share = SHARES[workload.name]
            workload.run("short", SHORT, seed, workload.config, share)
    if arguments.final is not None:
        names = arguments.final or (*NAMES, *SCHEDULES, *PEERS, SHAPE, *WITH_DECAY)
        best = {
            name: workload.best(name if name in PEERS else name.removesuffix(DECAY))
            for name in names
            if name.removesuffix(DECAY) in PEERS
        }
        for seed in arguments.seeds:
            for name in names:
                workload.run("final", name, seed, workload.config, rate=best.get(name))


if __name__ == "__main__":
    main()
