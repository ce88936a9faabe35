"""Compares the package with that of the tag lab-0.1 (commit c40e72a), in one process.

Question: is the package as small, as quick and as exact as before it was rewritten?
Method: bytes of state are exact. Compiling an update and running it are in CPU time on
one core, old and new in turn, without a cache; updates in rounds of ten, one of which
refreshes, with donated buffers and three gradients in turn. The paper's rule has SGD's
length, whitening Adam's. With --updates, both packages get the gradients along the old
trajectory, on data that need no files; where the tiles have the same shapes, updates
should differ by 1e-5 at most.
Answer: what it prints, from benchmarks/results/before_after.json.

    python -m benchmarks.cost.before_after [--old CHECKOUT] [--updates] [MODEL ...]
"""

import argparse
import functools
import itertools
import time
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.cost import compilation, counts, updates
from benchmarks.harness import lab, machine, results
from benchmarks.problems import made_up, shapes

NAME = "before_after"
COMPILATIONS, ROUNDS, BLOCK, STEPS = results.sized((5, 9, 10, 100), (1, 1, 2, 12))
MODELS = {
    "resnet50": lambda: shapes.resnet(50),
    "gpt2_block": lambda: {"block": shapes.gpt2(1)["block0"]},
    "cnn": lambda: compilation.parameters("cnn"),
    "autoencoder": lambda: shapes.dense_layers(784, 256, 64, 16, 64, 256, 784),
    "width20_depth8": lambda: shapes.dense_layers(2, *[20] * 8, 1),
}
RULES = {"paper": "BinomialSeries", "whitening": "Whitening"}
RATES = {"SGD": 0.05, "Adam": 1e-3, "Shape": 0.02}  # by length, of --updates


def optimizer(package: Any, rule: str) -> optax.GradientTransformation:
    """Returns the optimizer whose cost is measured, with an interval of ten."""
    if rule == "paper":
        return package.jorge(0.1, 0.9, 1e-3)
    made = package.from_adamw(1e-3, rule=package.Whitening(early_refreshes=0))
    return made.optimizer() if hasattr(made, "optimizer") else made


def measure(packages: list[Any], model: str, rule: str) -> dict[str, Any]:
    """Measures the costs of a model's update."""
    params = MODELS[model]()
    both = [optimizer(package, rule) for package in packages]
    structs = [(params, jax.eval_shape(tx.init, params), params) for tx in both]
    gradients = [updates.random_gradients(params, seed) for seed in range(3)]
    compilations, blocks, block = [], [], BLOCK
    compiled: list[Any] = [None, None]
    for turn in range(COMPILATIONS):
        spent = [0.0, 0.0]
        for i in (0, 1) if turn % 2 else (1, 0):
            jax.clear_caches()
            start = time.process_time()
            step = functools.partial(updates.update, both[i])
            lowered = jax.jit(step, donate_argnums=(0, 1)).lower(*structs[i])
            compiled[i] = lowered.compile()
            spent[i] = time.process_time() - start
        compilations.append(spent)
    carried = [updates.start(tx, params) for tx in both]
    for turn in range(1 + ROUNDS):
        spent = [0.0, 0.0]
        for i in (0, 1) if turn % 2 else (1, 0):
            start = time.process_time()
            for n in range(block):
                carried[i] = compiled[i](*carried[i], gradients[(turn + n) % 3])
            jax.block_until_ready(carried[i])
            spent[i] = time.process_time() - start
        if turn:
            blocks.append(spent)
        else:  # it touches fresh memory; the others take 0.2 s at least
            block *= max(1, round(0.2 / min(spent)))
    row = {"compile_seconds": compilations, "block_seconds": blocks}
    return {"state_bytes": [[counts.tree_bytes(s) for _, s, _ in structs]], **row}


def compare(packages: list[Any], model: str, rule: str, length: str) -> dict[str, Any]:
    """Compares the updates on the way of the old package."""
    params, model_state, loss, draw = made_up.problem(model)
    options = [
        {"rule": getattr(p, RULES[rule])(), "grafting": getattr(p.lengths, length)()}
        for p in packages
    ]
    pairs = zip(packages, options, strict=True)
    both = [package.jorge(RATES[length], **own) for package, own in pairs]
    states = [tx.init(params) for tx in both]

    @jax.jit
    def step(params, model_state, states, batch):
        grads, model_state = jax.grad(loss, has_aux=True)(params, model_state, batch)
        found = [
            tx.update(grads, s, params) for tx, s in zip(both, states, strict=True)
        ]
        (old, new), states = zip(*found, strict=True)
        gap = optax.tree.norm(optax.tree.sub(new, old)) / optax.tree.norm(old)
        return optax.apply_updates(params, old), model_state, list(states), gap

    gaps = []
    for _ in range(STEPS):
        params, model_state, states, gap = step(params, model_state, states, draw())
        gaps.append(float(f"{float(gap):.3g}"))
    roots = [jax.tree.leaves(optax.tree.get(state, "roots")) for state in states]
    old, new = (sorted(x.shape for x in own if x.ndim > 1) for own in roots)
    return {"same_tiles": old == new, "differences": gaps}


def summary(row: dict[str, Any]) -> list[str]:
    """Formats the largest difference, or the ratios: median, least and most."""
    if "differences" in row:
        tiles = "equal" if row["same_tiles"] else "OTHER"
        return [f"at most {max(row['differences']):.1e}, {tiles} tiles"]
    found = []  # of [old, new]
    for key in ("state_bytes", "compile_seconds", "block_seconds"):
        least, median, most = np.quantile([b / a for a, b in row[key]], (0, 0.5, 1))
        found.append(f"{key} {median:.3f} ({least:.3f} to {most:.3f})")
    return found


def main() -> None:
    """Measures costs, or compares updates; writes and prints each row."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--old", metavar="CHECKOUT", help="of the tag lab-0.1")
    parser.add_argument("--updates", action="store_true")
    args = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    packages = lab.load(args.old)
    models = ("transformer", "resnet", "mlp") if args.updates else (*MODELS,)
    models = args.models or results.sized(models, models[-1:])
    for case in itertools.product(models, RULES, *([RATES] if args.updates else [])):
        row = (compare if args.updates else measure)(packages, *case)
        key = dict(zip(("model", "rule", "length"), (*case, None), strict=False))
        kept = [old for old in results.rows(NAME) if not key.items() <= old.items()]
        results.write(NAME, [*kept, {**key, **row}])
        print(*case, *summary(row), sep=", ", flush=True)


if __name__ == "__main__":
    machine.steady()
    main()
