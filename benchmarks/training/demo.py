"""Tunes the baselines of the demo, and runs it with more seeds and with one thread.

Question: does the demo's order of optimizers hold for other seeds, and for one thread,
which adds in another order?
Method: the transformer of examples/language_model. The learning rates of AdamW and of
Muon are the best of three or more, a factor of 2 apart, on a seed that is not used
again; examples/language_model/configs.py has them. Jorge has AdamW's. Then six seeds of
each optimizer; the demo has the first three. With --one-thread, the first three again.
Answer: examples/language_model/README.md, from benchmarks/results/demo.json.

    python -m benchmarks.training.demo [--one-thread]

Runs what the JSON lacks: delete it to measure all again.
"""

import argparse
import dataclasses
import os

from benchmarks.harness import results
from examples.language_model.configs import OPTIMIZERS, Config
from examples.language_model.train import Trainer

CONFIG = results.sized(Config(), Config(steps=20, warmup=5))
TUNING_SEED, SEEDS = 100, results.sized((0, 1, 2, 3, 4, 5), (0,))
RATES = {"adamw": (4e-3, 8e-3, 1.6e-2), "muon": (8e-3, 1.6e-2, 3.2e-2)}


def run(stage: str, optimizer: str, config: Config, seeds: tuple[int, ...]) -> None:
    """Trains with each seed that the JSON lacks, and keeps the curve."""
    field = "muon_rate" if optimizer == "muon" else "adamw_rate"
    key = dict(stage=stage, optimizer=optimizer, rate=getattr(config, field))
    trainer = None
    for seed in seeds:
        own = {**key, "seed": seed}
        if any(own.items() <= row.items() for row in results.rows("demo")):
            continue
        trainer = trainer or Trainer(config, OPTIMIZERS[optimizer](config))
        row = {**own, "curve": trainer.train(seed)}
        print(*own.values(), row["curve"][-1][1], flush=True)
        with results.lock():
            facts = {"config": dataclasses.asdict(CONFIG), "tuning_seed": TUNING_SEED}
            results.write("demo", [*results.rows("demo"), row], **facts)


def main() -> None:
    """Runs what the JSON lacks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--one-thread", action="store_true")
    if parser.parse_args().one_thread:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"  # read later
        for optimizer in OPTIMIZERS:
            run("one thread", optimizer, CONFIG, SEEDS[:3])
        return
    for optimizer, rates in RATES.items():
        for rate in rates:
            config = dataclasses.replace(CONFIG, **{f"{optimizer}_rate": rate})
            run("tune", optimizer, config, (TUNING_SEED,))
    for optimizer in OPTIMIZERS:
        run("final", optimizer, CONFIG, SEEDS)


if __name__ == "__main__":
    main()
