"""Measures the memory of Jorge's state, and how small states affect training.

Question: how many bytes does the state take, compared with AdamW, with roots and
momenta in float32 or bfloat16, by each rule? Do small states train as well?
Method: bytes are those that init would allocate, exactly, for four models and a small
transformer. Training: two of the problems of benchmarks/problems, with a cosine
schedule, momentum 0.9, an interval of 10 and the learning rate that training.comparison
found for SGD; the metric at the end.
Answer: docs/results/cost.md, from benchmarks/results/memory_study.json, whose rows of
other variants are of the tag lab-0.1 (commit c40e72a).

    python -m benchmarks.cost.memory [PROBLEM ...] [--only VARIANT ...]
"""

import argparse
import functools
from collections.abc import Callable
from typing import Any

import jax
import optax

from benchmarks.cost import counts
from benchmarks.harness import results
from benchmarks.problems import PROBLEMS, language_model, shapes
from benchmarks.problems.training import trainer
from jorge_optax import Numerics, Tiling, Whitening, jorge

MODELS = {
    **shapes.MODELS,
    "transformer": lambda: jax.eval_shape(lambda: language_model.init(0)),
}
RATES = {"mlp": 0.1, "resnet": 0.2}  # tuned for SGD by training.comparison
SEEDS = results.sized((0, 1, 2), (0,))
MOMENTUM = 0.9
Maker = Callable[[Any], optax.GradientTransformation]


def _jorge(rate: Any, **options: Any) -> optax.GradientTransformation:
    return jorge(rate, MOMENTUM, **options)


ROOTS = {"numerics": Numerics(roots="bfloat16")}
BOTH = {"numerics": Numerics(roots="bfloat16", momenta="bfloat16")}
VARIANTS: dict[str, Maker] = {
    "sgd": lambda rate: optax.sgd(rate, MOMENTUM),
    "adamw": optax.adamw,
    "jorge": _jorge,
    "jorge, roots in bfloat16": functools.partial(_jorge, **ROOTS),
    "jorge, all in bfloat16": functools.partial(_jorge, **BOTH),
    "jorge, all in bfloat16, tiles of 64": functools.partial(
        _jorge, tiling=Tiling(64), **BOTH
    ),
    "whitening": functools.partial(_jorge, rule=Whitening()),
    "whitening, all in bfloat16": functools.partial(_jorge, rule=Whitening(), **BOTH),
}
TRAINED = results.sized([v for v in VARIANTS if v != "adamw"], ["jorge"])


def size(variant: str, model: str) -> dict:
    """Bytes of state, and their ratio to AdamW's."""
    params = MODELS[model]()
    own, adamw = (
        counts.tree_bytes(jax.eval_shape(make(1e-3).init, params))
        for make in (VARIANTS[variant], optax.adamw)
    )
    return {
        "kind": "bytes",
        "variant": variant,
        "model": model,
        "bytes": own,
        "over_adamw": own / adamw,
    }


@functools.cache
def _trainer(variant: str, name: str) -> Callable[[float, int], Any]:
    problem = PROBLEMS[name]()
    return trainer(
        problem,
        lambda rate: VARIANTS[variant](
            optax.cosine_decay_schedule(rate, problem.steps)
        ),
    )


def run(variant: str, name: str, seed: int) -> dict:
    """Runs one training."""
    final = _trainer(variant, name)(RATES[name], seed)[-1]
    row = dict(kind="run", variant=variant, problem=name, seed=seed, final=final)
    print(*row.values(), flush=True)
    return row


def main() -> None:
    """Counts all bytes, and trains what the JSON lacks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", default=[*RATES])
    parser.add_argument("--only", nargs="+", metavar="VARIANT", default=TRAINED)
    arguments = parser.parse_args()
    sizes = [size(variant, model) for variant in VARIANTS for model in MODELS]

    def add(row: dict | None) -> None:
        with results.lock():
            old = results.rows("memory_study")
            sized = [(r["variant"], r["model"]) for r in sizes]
            kept = [r for r in old if (r["variant"], r.get("model")) not in sized]
            results.write("memory_study", sizes + kept + ([row] if row else []))

    add(None)
    for name in arguments.problems:
        for variant in arguments.only:
            for seed in SEEDS:
                wanted = dict(kind="run", variant=variant, problem=name, seed=seed)
                rows = results.rows("memory_study")
                if not any(wanted.items() <= row.items() for row in rows):
                    add(run(variant, name, seed))


if __name__ == "__main__":
    main()
