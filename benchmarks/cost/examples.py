"""Times the examples' steps against SGD's, and updates against AdamW's.

Question: how much longer is a step of each example with Jorge at interval 10 than with
SGD, and an update of five models than AdamW's, now and in an earlier version?
Method: one process on one core (harness/machine.py). Steps: the default configuration
of each example, on its own data; in each round every optimizer takes ten steps, of
which one refreshes the roots. Updates: in each round a plain one and one with a
refresh; the cost at interval k is plain + (refresh - plain) / k. Ratios are of the same
round; the table has their median, smallest and largest. Whitening is measured after its
early refreshes. An earlier version of the package is timed by the same code, in a
process of its own, with that version on PYTHONPATH and PYTHONSAFEPATH=1. The profile
counts products and convolutions, those of a refresh at one step in ten.
Answer: docs/results/cost.md, from benchmarks/results/example_cost.json.

    python -m benchmarks.cost.examples [steps] [updates] [profile] [--version NAME]
"""

import argparse
import dataclasses
import importlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.cost import counts, updates
from benchmarks.harness import machine, results
from benchmarks.problems import shapes
from jorge_optax import BinomialSeries, Whitening, jorge

INTERVAL = 10
ROUNDS = results.sized(9, 2)
NOW = "now"
RULES = {"jorge": BinomialSeries(), "whitening": Whitening(early_refreshes=0)}
MODELS = results.sized(
    ("resnet18", "resnet50", "deeplabv3_resnet50", "maskrcnn_resnet50_fpn", "lm"),
    ("lm",),
)
EXAMPLES = results.sized(
    ("classification", "segmentation", "detection", "language_model"),
    ("language_model",),
)

Take = Callable[[], None]


def interleave(takes: dict[str, list[Take]], rounds: int) -> dict[str, np.ndarray]:
    """Returns seconds ``[rounds, parts]`` of all parts of each optimizer.

    The first round is not timed, and every other one runs in reverse order.
    """
    seconds = {name: np.zeros((rounds, len(own))) for name, own in takes.items()}
    for turn in range(rounds + 1):
        for name in list(takes)[:: -1 if turn % 2 else 1]:
            for part, take in enumerate(takes[name]):
                start = time.perf_counter()
                take()
                if turn:
                    seconds[name][turn - 1, part] = time.perf_counter() - start
    return seconds


def time_steps(name: str) -> list[dict]:
    """Returns a row for each optimizer on one example."""
    make = _language_model if name == "language_model" else _image_task
    takes = {key: [take] for key, take in make(name).items()}
    seconds = interleave(takes, ROUNDS)
    return [
        {
            "kind": "step",
            "model": name,
            "optimizer": key,
            "step_seconds": updates.spread(own[:, 0] / INTERVAL),
            "ratio": updates.spread(own[:, 0] / seconds["sgd"][:, 0]),
        }
        for key, own in seconds.items()
    ]


def profile(name: str) -> list[dict]:
    """Returns a row for each optimizer: operations of a step of one example."""
    count = _count_language_model if name == "language_model" else _count_image_task
    return [
        {
            "kind": "profile",
            "model": name,
            "optimizer": key,
            "gflop": (flops.plain + flops.refresh / INTERVAL) / 1e9,
        }
        for key, flops in count(name).items()
    ]


def _count_image_task(name: str) -> dict[str, counts.Flops]:
    made, (batch, *_) = _steps_and_batches(name)
    return {key: counts.matmul_flops(*own, batch) for key, own in made.items()}


def _count_language_model(name: str) -> dict[str, counts.Flops]:
    from flax import nnx

    from examples.language_model import configs, models

    del name
    config = configs.Config()
    sizes = {x: getattr(config, x) for x in ("context", "width", "heads", "layers")}
    graph, params = nnx.split(models.Transformer(**sizes, rngs=nnx.Rngs(0)))

    def total(params: Any, tokens: jax.Array) -> jax.Array:
        return nnx.merge(graph, params)(tokens).sum()

    tokens = jax.ShapeDtypeStruct((config.batch_size, config.context), np.int32)
    alone = counts.matmul_flops(jax.grad(total), params, tokens).plain
    found = {"sgd": counts.Flops(alone, 0), "adamw": counts.Flops(alone, 0)}
    for key, rule in RULES.items():
        own = configs.jorge(config, rule)
        state = jax.eval_shape(own.init, params)
        flops = counts.matmul_flops(own.update, params, state, params)
        found[key] = counts.Flops(alone + flops.plain, flops.refresh)
    return found


def _steps_and_batches(name: str) -> tuple[dict[str, tuple[Any, Any]], list[Any]]:
    """Returns step and state for each optimizer, and batches."""
    # Imported here: an earlier version of the package may lack what they import.
    from examples.shared import loop, optimizers

    configs = importlib.import_module(f"examples.{name}.configs").CONFIGS
    config = next(iter(configs.values()))
    config = dataclasses.replace(config, update_interval=INTERVAL)
    task = importlib.import_module(f"examples.{name}.train").make_task(config, seed=0)
    batches = task.train(0)
    own = "/sgd-schedule"
    names = {"sgd": "sgd", "adamw": "adamw", "jorge": f"jorge{own}"}
    names["whitening"] = f"jorge-whitening{own}"

    def make(known: str) -> tuple[Any, Any]:
        built = optimizers.build(
            known, config, steps=10**5, steps_per_epoch=task.steps_per_epoch
        )
        return loop.make_step_and_state(task, built.transformation, seed=0)

    made = {key: make(known) for key, known in names.items()}
    return made, [next(batches) for _ in range(INTERVAL)]


def _image_task(name: str) -> dict[str, Take]:
    made, batches = _steps_and_batches(name)

    def make(step: Any, state: Any) -> Take:
        # After the early refreshes, and at a multiple of the interval.
        late = optax.tree.set(state.opt_state, count=np.int32(100 * INTERVAL))
        live = [state._replace(opt_state=late)]

        def take() -> None:
            for batch in batches:
                live[0], _ = step(live[0], batch)
            jax.block_until_ready(live)

        return take

    return {key: make(*own) for key, own in made.items()}


def _language_model(name: str) -> dict[str, Take]:
    from examples.language_model import configs
    from examples.language_model.train import Trainer

    del name
    config = configs.Config(steps=INTERVAL, eval_every=INTERVAL, warmup=1, held_out=1)
    optimizers = {
        "sgd": optax.sgd(1e-3, 0.9),
        "adamw": configs.adamw(config),
        **{key: configs.jorge(config, rule) for key, rule in RULES.items()},
    }
    trainers = {key: Trainer(config, own) for key, own in optimizers.items()}
    return {key: (lambda own=own: _once(own)) for key, own in trainers.items()}


def _once(trainer: Any) -> None:
    trainer.train(0)


def time_updates(name: str, version: str) -> list[dict]:
    """Returns a row for each optimizer on the parameters of one model."""
    params = _parameters(name)
    grads = updates.random_gradients(params)
    optimizers = {
        "sgd": optax.sgd(1e-3, 0.9),
        "adamw": optax.adamw(1e-3, weight_decay=1e-2),
        **{
            key: jorge(1e-3, 0.9, 1e-3, rule=rule, update_interval=2)
            for key, rule in RULES.items()
        },
    }

    def make(key: str, optimizer: Any) -> list[Take]:
        state = jax.eval_shape(optimizer.init, params)

        def update(carried: Any, grads: Any) -> Any:
            return updates.update(optimizer, *carried, grads)

        structs = (params, state), params
        compiled, *_ = updates.compile_timed(update, structs, 0)
        live = [updates.start(optimizer, params)]

        def take() -> None:
            live[0] = jax.block_until_ready(compiled(live[0], grads))

        if key not in RULES:
            return [take]
        take()  # the first step refreshes: then plain and refreshing ones alternate
        return [take, take]

    takes = {key: make(key, own) for key, own in optimizers.items()}
    seconds = interleave(takes, results.sized(5, 2))
    costs = {
        key: own[:, 0] + (own[:, -1] - own[:, 0]) / INTERVAL
        for key, own in seconds.items()
    }
    return [
        {
            "kind": "update",
            "version": version,
            "model": name,
            "optimizer": key,
            "plain_seconds": updates.spread(seconds[key][:, 0]),
            "refresh_seconds": updates.spread(seconds[key][:, -1]),
            "ratio": updates.spread(own / costs["adamw"]),
        }
        for key, own in costs.items()
    ]


def _parameters(name: str) -> Any:
    if name == "lm":
        from benchmarks.problems import language_model

        return jax.eval_shape(lambda: language_model.init(0))
    return shapes.MODELS[name]()


def main() -> None:
    """Times what is named and writes the JSON."""
    parser = argparse.ArgumentParser()
    kinds = ["steps", "updates", "profile"]
    parser.add_argument("kinds", nargs="*", default=kinds)
    parser.add_argument("--version", default=NOW, help="name of the package's version")
    arguments = parser.parse_args()
    jobs = []
    if "steps" in arguments.kinds:
        jobs += [(time_steps, (name,)) for name in EXAMPLES]
    if "profile" in arguments.kinds:
        jobs += [(profile, (name,)) for name in EXAMPLES]
    if "updates" in arguments.kinds:
        jobs += [(time_updates, (name, arguments.version)) for name in MODELS]
    for function, chosen in jobs:
        new = function(*chosen)
        print(*new, sep="\n", flush=True)
        keys = ("kind", "version", "model")
        own = [tuple(map(row.get, keys)) for row in new]
        kept = [
            row
            for row in results.rows("example_cost")
            if tuple(map(row.get, keys)) not in own
        ]
        results.write("example_cost", [*kept, *new], seeds=[0])


if __name__ == "__main__":
    machine.steady()
    main()
