"""Measures what compilation costs a small model, and what JAX's cache saves.

Question: how long does the training step of a small network compile with each
optimizer, and with JAX's persistent cache in a second process? How long does the update
alone compile, and what for? How long does `diagnostics` compile for a large model?
Method: each program is lowered and compiled in a process of its own; the seconds are
those of CPU time, in which other programs count less. The network has two dense layers,
64 x 64 and 64 x 10. Each optimizer has a cache folder of its own, which its first
process fills and its second one reads. Three repetitions, each with empty folders. The
updates are those of a CNN of four layers, of a transformer of two blocks and of
ResNet-50; "no refresh" is the whitening rule with roots that stay. Kernels are the
loops that XLA compiles; for products it calls a library.
Answer: docs/diagnostics.md, from benchmarks/results/compilation.json.

    python -m benchmarks.cost.compilation [step] [update] [diagnostics]
"""

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from benchmarks.cost import updates
from benchmarks.harness import results
from benchmarks.problems import shapes
from jorge_optax import Whitening, diagnostics, jorge

REPETITIONS = results.sized(3, 1)
OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1, 0.9),
    "adamw": lambda: optax.adamw(1e-3),
    "jorge": lambda: jorge(0.1),
    "whitening": lambda: jorge(0.1, rule=Whitening()),
}


@dataclasses.dataclass(frozen=True)
class NoRefresh(Whitening):
    """The whitening rule, with roots that stay as they are."""

    early_refreshes: int = 0

    def refresh(self, root, seen, real, rounding):
        """Returns the root as it is."""
        del seen, real, rounding
        return root


UPDATED = {**OPTIMIZERS, "no refresh": lambda: jorge(0.1, rule=NoRefresh())}
MODELS = results.sized(("resnet18", "resnet50"), ("resnet18",))
UPDATED_MODELS = results.sized(("cnn", "transformer", "resnet50"), ("cnn",))
# What a child process may compile, by name.
Program = tuple[Callable[..., Any], tuple[Any, ...]]


def network_step(optimizer: str) -> Program:
    """The whole training step of the small network."""
    tx = OPTIMIZERS[optimizer]()

    def loss(params, x, y):
        hidden = jnp.tanh(x @ params["in"]["kernel"] + params["in"]["bias"])
        logits = hidden @ params["out"]["kernel"] + params["out"]["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(params, state, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    params = {
        "in": {"kernel": _struct(64, 64), "bias": _struct(64)},
        "out": {"kernel": _struct(64, 10), "bias": _struct(10)},
    }
    state = jax.eval_shape(tx.init, params)
    labels = jax.ShapeDtypeStruct((128,), jnp.int32)
    return step, (params, state, _struct(128, 64), labels)


def inspection(model: str, with_gradients: bool) -> Program:
    """Diagnostics of the roots of a large model."""
    params, tx = shapes.MODELS[model](), jorge(0.1)
    state = jax.eval_shape(tx.init, params)

    def inspect(state, params, grads=None):
        return diagnostics(state, params, grads, tx)

    return inspect, (state, params, *([params] * with_gradients))


class Compiled(NamedTuple):
    """What a compilation took.

    Attributes:
      seconds: Of CPU time.
      kernels: Loops that XLA compiled.
    """

    seconds: float
    kernels: int


def parameters(model: str) -> Any:
    """Returns the parameters of a model whose update is compiled."""
    if model == "cnn":
        channels = ((3, 32), (32, 64), (64, 128))
        layers = {
            f"conv{i}": {"kernel": _struct(3, 3, *own), "bias": _struct(own[1])}
            for i, own in enumerate(channels)
        }
        return {**layers, "dense": {"kernel": _struct(2048, 10), "bias": _struct(10)}}
    if model == "transformer":
        wide, high = _struct(64, 256), _struct(256, 64)
        ends = {"embed": high, "position": _struct(128, 64), "head": wide}
        block = {"qkv": _struct(64, 192), "out": _struct(64, 64), "up": wide}
        block |= {"down": high, "norm1": _struct(64), "norm2": _struct(64)}
        return {**ends, "block1": block, "block2": block}
    return shapes.MODELS[model]()


def update(model: str, optimizer: str) -> Program:
    """The update of a model alone, as the other studies of cost have it."""
    tx, params = UPDATED[optimizer](), parameters(model)
    step = functools.partial(updates.update, tx)
    return step, (params, jax.eval_shape(tx.init, params), params)


def _struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


PROGRAMS: dict[str, Callable[[], Program]] = {
    **{name: lambda name=name: network_step(name) for name in OPTIMIZERS},
    **{
        f"update {model} {name}": lambda m=model, n=name: update(m, n)
        for model in UPDATED_MODELS
        for name in UPDATED
    },
    **{
        f"diagnostics {model}{' grads' * grads}": lambda m=model, g=grads: inspection(
            m, g
        )
        for model in MODELS
        for grads in (False, True)
    },
}


def compile_here(name: str) -> Compiled:
    """Lowers and compiles a program in this process."""
    function, arguments = PROGRAMS[name]()
    jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))  # starts the backend
    start = time.process_time()
    compiled = jax.jit(function).lower(*arguments).compile()
    seconds = time.process_time() - start
    return Compiled(seconds, compiled.as_text().count("kind=kLoop"))


def compile_in_child(name: str, cache: str | None = None) -> Compiled:
    """Does the same in a process of its own, with a folder for JAX's cache, or none."""
    environment = {k: v for k, v in os.environ.items() if "CACHE" not in k}
    if cache:
        environment["JAX_COMPILATION_CACHE_DIR"] = cache
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    module = "benchmarks.cost.compilation"
    output = subprocess.run(
        [sys.executable, "-m", module, "--compile", name],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    return Compiled(*json.loads(output.splitlines()[-1]))


def step_row(optimizer: str) -> dict[str, Any]:
    """Measures the step of the small network, without and with a filled cache."""
    first, second, size = [], [], 0
    for _ in range(REPETITIONS):
        with tempfile.TemporaryDirectory() as cache:
            first.append(compile_in_child(optimizer, cache).seconds)
            second.append(compile_in_child(optimizer, cache).seconds)
            files = pathlib.Path(cache).rglob("*")
            size = sum(file.stat().st_size for file in files if file.is_file())
    return {
        "kind": "step",
        "optimizer": optimizer,
        "first_seconds": first,
        "second_seconds": second,
        "cache_bytes": size,
    }


def update_rows(model: str) -> list[dict[str, Any]]:
    """Measures the update of a model with all optimizers, in turn."""
    runs: dict[str, list[Compiled]] = {name: [] for name in UPDATED}
    for _ in range(REPETITIONS):
        for name, own in runs.items():
            own.append(compile_in_child(f"update {model} {name}"))
    return [
        {
            "kind": "update",
            "model": model,
            "optimizer": name,
            "seconds": [run.seconds for run in own],
            "kernels": own[0].kernels,
        }
        for name, own in runs.items()
    ]


def diagnostics_row(model: str) -> dict[str, Any]:
    """Measures diagnostics of a model, without and with gradients."""
    alone, with_gradients = (
        [
            compile_in_child(f"diagnostics {model}{more}").seconds
            for _ in range(REPETITIONS)
        ]
        for more in ("", " grads")
    )
    return {
        "kind": "diagnostics",
        "model": model,
        "seconds": alone,
        "seconds_with_gradients": with_gradients,
    }


def main() -> None:
    """Measures all or the kinds that are named, or compiles one program."""
    jobs = {
        "step": [lambda name=name: [step_row(name)] for name in OPTIMIZERS],
        "update": [lambda model=model: update_rows(model) for model in UPDATED_MODELS],
        "diagnostics": [
            lambda model=model: [diagnostics_row(model)] for model in MODELS
        ],
    }
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=list(jobs))
    parser.add_argument("--compile", choices=[*PROGRAMS], help="in this process")
    arguments = parser.parse_args()
    if arguments.compile:
        print(json.dumps(compile_here(arguments.compile)))
        return
    rows = results.rows("compilation")
    rows = [row for row in rows if row["kind"] not in arguments.kinds]
    for kind in arguments.kinds:
        for measure in jobs[kind]:
            rows += measure()
            print(*rows[-1].values(), flush=True)
            results.write("compilation", rows)


if __name__ == "__main__":
    main()
