"""Trains a small ResNet on digits with SGD, AdamW and Jorge, and compares them.

For each seed all three start from the same weights and see the same batches.
"""

import argparse
import time

import optax
from digits import data, report, training
from digits.optimizers import SUMMARY, make_optimizers
from tqdm import tqdm

BATCH_SIZE = 128
EVAL_EVERY = 10  # a multiple of the interval between refreshes of Jorge's roots
TARGET = 0.99  # fixed beforehand: the highest half point SGD reached in 6 runs of 6


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="steps of each run")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each optimizer")
    parser.add_argument("--out", default="demo.png", help="where the figure goes")
    parser.add_argument(
        "--quick", action="store_true", help="one seed of 10 steps, to see that it runs"
    )
    args = parser.parse_args()
    if args.quick:
        args.steps, args.seeds = 10, 1
    return args


def train_all(
    optimizers: dict[str, optax.GradientTransformation],
    compiled: dict[str, training.CompiledStep],
    digits: data.Digits,
    batches: list[data.Batches],
) -> report.Runs:
    """Trains with each optimizer in turn, seed by seed."""
    runs: report.Runs = {name: [] for name in optimizers}
    steps = len(batches[0].labels)
    with tqdm(total=len(optimizers) * len(batches) * steps, unit="step") as bar:
        for seed, seed_batches in enumerate(batches):
            for name, optimizer in optimizers.items():
                bar.set_description(f"{name}, seed {seed}")
                run = training.train(
                    optimizer,
                    compiled[name],
                    digits,
                    seed_batches,
                    seed=seed,
                    eval_every=EVAL_EVERY,
                    on_steps=bar.update,
                )
                runs[name].append(run)
    return runs


def main() -> None:
    args = parse_args()
    start = time.perf_counter()
    digits = data.load()
    batches = [
        data.make_batches(digits, args.steps, BATCH_SIZE, seed)
        for seed in range(args.seeds)
    ]
    optimizers = make_optimizers(args.steps)
    compiled = {
        name: training.compile_step(optimizer, batches[0])
        for name, optimizer in optimizers.items()
    }
    runs = train_all(optimizers, compiled, digits, batches)
    compile_s = {name: step.seconds for name, step in compiled.items()}
    print(report.make_table(runs, compile_s, TARGET))
    print(f"\n{SUMMARY}\n")
    report.plot(runs, TARGET, args.out)
    print(f"Wrote {args.out} after {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
