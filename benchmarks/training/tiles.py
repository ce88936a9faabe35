"""Measures how tile size and grafting by tile or by leaf affect training.

Question: does cutting a layer into smaller tiles cost quality? Is it better to graft
SGD's norm tile by tile (as jorge does) or leaf by leaf? What do the interval and eps
change?
Method: an MLP 784-512-512-10 on Fashion-MNIST, batch 256, learning rate 0.1, momentum
0.9, no decay, constant rate, 400 steps; mean training loss of the last 50 steps; three
seeds, the same for all.
Answer: docs/results/rules.md, from benchmarks/results/tiles_study.json.

    python -m benchmarks.training.tiles
"""

import numpy as np
import optax

from benchmarks.harness import results
from benchmarks.problems import fashion_mnist
from jorge_optax import Tiling, graft, jorge, scale_by_jorge

SEEDS = results.sized((0, 1, 2), (0,))
STEPS = results.sized(400, 10)
TILES = results.sized((64, 128, 256, 512, 1024), (64,))
INTERVALS = results.sized((2, 5, 20, 50), (2,))


def by_leaf(max_dim: int, **options):
    """Returns Jorge with one grafted norm for each leaf."""
    direction = scale_by_jorge(momentum=0.9, tiling=Tiling(max_dim), **options)
    return optax.chain(
        graft(optax.trace(0.9), direction), optax.scale_by_learning_rate(0.1)
    )


def variants() -> dict:
    """Returns the optimizers by name."""
    variants = {"sgd": optax.sgd(0.1, 0.9)}
    for max_dim in TILES:
        tiling = Tiling(max_dim)
        variants[f"tiles of {max_dim}, norm by tile"] = jorge(0.1, tiling=tiling)
        if max_dim < 1024:
            variants[f"tiles of {max_dim}, norm by leaf"] = by_leaf(max_dim)
    for interval in INTERVALS:
        variants[f"interval {interval}"] = jorge(0.1, update_interval=interval)
    for eps in (1e-10, 1e-3):
        variants[f"eps {eps:g}"] = jorge(0.1, eps=eps)
    return variants


def main() -> None:
    """Runs everything and writes the JSON."""
    rows = []
    for name, optimizer in variants().items():
        losses = [
            float(np.mean(fashion_mnist.train(optimizer, seed, STEPS)[-50:]))
            for seed in SEEDS
        ]
        rows.append({"variant": name, "final_loss": losses})
        print(f"{name:<30} {np.mean(losses):.4f}", np.round(losses, 4), flush=True)
    results.write("tiles_study", rows, seeds=list(SEEDS), steps=STEPS)


if __name__ == "__main__":
    main()
