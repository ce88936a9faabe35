"""Measures what compilation costs a small model, and what JAX's cache saves.

Question: how long does the training step of a small network compile with each
optimizer, and with JAX's persistent cache in a second process? How long does
`diagnostics` compile for a large model?
Method: each program is lowered and compiled in a process of its own; the seconds are
those of CPU time, in which other programs count less. The network has two dense layers,
64 x 64 and 64 x 10. Each optimizer has a cache folder of its own, which its first
process fills and its second one reads. Three repetitions, each with empty folders.
Answer: docs/diagnostics.md, from benchmarks/results/compilation.json.

    python -m benchmarks.cost.compilation
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

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
MODELS = results.sized(("resnet18", "resnet50"), ("resnet18",))
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
    params = shapes.MODELS[model]()
    state = jax.eval_shape(jorge(0.1).init, params)
    return diagnostics, (state, params, *([params] * with_gradients))


def _struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


PROGRAMS: dict[str, Callable[[], Program]] = {
    **{name: lambda name=name: network_step(name) for name in OPTIMIZERS},
    **{
        f"diagnostics {model}{' grads' * grads}": lambda m=model, g=grads: inspection(
            m, g
        )
        for model in MODELS
        for grads in (False, True)
    },
}


def compile_here(name: str) -> float:
    """Lowers and compiles a program in this process; returns seconds of CPU time."""
    function, arguments = PROGRAMS[name]()
    jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))  # starts the backend
    start = time.process_time()
    jax.jit(function).lower(*arguments).compile()
    return time.process_time() - start


def compile_in_child(name: str, cache: str | None = None) -> float:
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
    return json.loads(output.splitlines()[-1])


def step_row(optimizer: str) -> dict[str, Any]:
    """Measures the step of the small network, without and with a filled cache."""
    first, second, size = [], [], 0
    for _ in range(REPETITIONS):
        with tempfile.TemporaryDirectory() as cache:
            first.append(compile_in_child(optimizer, cache))
            second.append(compile_in_child(optimizer, cache))
            files = pathlib.Path(cache).rglob("*")
            size = sum(file.stat().st_size for file in files if file.is_file())
    return {
        "kind": "step",
        "optimizer": optimizer,
        "first_seconds": first,
        "second_seconds": second,
        "cache_bytes": size,
    }


def diagnostics_row(model: str) -> dict[str, Any]:
    """Measures diagnostics of a model, without and with gradients."""
    alone, with_gradients = (
        [compile_in_child(f"diagnostics {model}{more}") for _ in range(REPETITIONS)]
        for more in ("", " grads")
    )
    return {
        "kind": "diagnostics",
        "model": model,
        "seconds": alone,
        "seconds_with_gradients": with_gradients,
    }


def main() -> None:
    """Measures all, or compiles one program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", choices=[*PROGRAMS], help="in this process")
    arguments = parser.parse_args()
    if arguments.compile:
        print(json.dumps(compile_here(arguments.compile)))
        return
    rows = []
    for measure, names in ((step_row, OPTIMIZERS), (diagnostics_row, MODELS)):
        for name in names:
            rows.append(measure(name))
            print(*rows[-1].values(), flush=True)
            results.write("compilation", rows)


if __name__ == "__main__":
    main()
