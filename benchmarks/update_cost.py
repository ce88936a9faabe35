"""What does an update of Jorge cost beside SGD's and AdamW's?

Question: for the parameters of ResNet-50 and of DeepLabv3-ResNet-50, how large is the
lowered program of the update alone, how long does it compile, how many operations have
its matrix products against the least that the formulas demand, how many bytes its
state, and how long does a step take?
Method: one process; compilations and steps of all optimizers interleaved, in rounds;
medians with the smallest and the largest. Counts are exact. Steps without gradients or
forward pass: the update alone, with donated state.
Answer: docs/results.md, from benchmarks/results/update_cost.json.

    python -m benchmarks.update_cost
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import counts, results, shapes
from jorge_optax import Tiling, jorge

MODELS = results.sized(
    {
        "resnet50": lambda: shapes.resnet(50),
        "deeplabv3_resnet50": shapes.deeplabv3_resnet50,
    },
    {"resnet18": lambda: shapes.resnet(18)},
)


def optimizers() -> dict:
    """By name, each with weight decay."""
    return {
        "sgd": optax.chain(
            optax.add_decayed_weights(1e-4), optax.sgd(0.1, momentum=0.9)
        ),
        "adamw": optax.adamw(1e-3, weight_decay=1e-2),
        "jorge": jorge(0.1, 0.9, 1e-3),
    }


def compile_update(optimizer, params):
    """Lowered and compiled update of the parameters, and how long that took."""

    def step(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.eval_shape(optimizer.init, params)
    start = time.perf_counter()
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(params, state, params)
    middle = time.perf_counter()
    compiled = lowered.compile()
    end = time.perf_counter()
    return lowered, compiled, middle - start, end - middle


def spread(values) -> dict:
    """Median, smallest and largest."""
    return {
        "median": float(np.median(values)),
        "min": float(np.min(values)),
        "max": float(np.max(values)),
    }


def measure(model: str, rounds: int, steps: int) -> list[dict]:
    """One row for each optimizer."""
    params = MODELS[model]()
    times = {name: {"lower": [], "compile": []} for name in optimizers()}
    rows, compiled = {}, {}
    for _ in range(rounds):
        jax.clear_caches()
        for name, optimizer in optimizers().items():
            lowered, compiled[name], lower, compile_ = compile_update(optimizer, params)
            times[name]["lower"].append(lower)
            times[name]["compile"].append(compile_)
            rows[name] = {"lowered_characters": len(lowered.as_text())}
    for name, optimizer in optimizers().items():
        state = jax.eval_shape(optimizer.init, params)
        flops = counts.matmul_flops(optimizer.update, params, state, params)
        rows[name] |= {
            "model": model,
            "optimizer": name,
            "lower_seconds": spread(times[name]["lower"]),
            "compile_seconds": spread(times[name]["compile"]),
            "compile_over_adamw": spread(
                np.divide(times[name]["compile"], times["adamw"]["compile"])
            ),
            "matmul_flops": flops._asdict(),
            "state_bytes": counts.tree_bytes(state),
            "temporary_bytes": compiled[name].memory_analysis().temp_size_in_bytes,
        }
        if name == "jorge":
            least = counts.least_flops(params, Tiling())
            rows[name]["least_matmul_flops"] = least._asdict()
    for name, values in time_steps(params, compiled, steps).items():
        rows[name]["step_seconds"] = values
    return list(rows.values())


def time_steps(params, compiled, steps: int) -> dict:
    """Plain steps, and for Jorge refresh steps, of all optimizers in turn."""
    rng = np.random.default_rng(0)
    grads = jax.tree.map(
        lambda s: jnp.asarray(0.01 * rng.normal(size=s.shape), s.dtype), params
    )
    # A state whose count stands at 0 refreshes; at 1 it does not, until 10.
    seconds: dict = {name: {"plain": [], "refresh": []} for name in compiled}
    live = {}
    for name, optimizer in optimizers().items():
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), params)
        live[name] = zeros, optimizer.init(zeros)
    for step in range(steps):
        for name, run in compiled.items():
            start = time.perf_counter()
            live[name] = jax.block_until_ready(run(*live[name], grads))
            kind = "refresh" if step % 10 == 0 else "plain"
            seconds[name][kind].append(time.perf_counter() - start)
    result = {}
    for name, kinds in seconds.items():
        # SGD and AdamW have steps of one kind only.
        if name != "jorge":
            kinds = {"plain": kinds["plain"] + kinds["refresh"]}
        result[name] = {kind: spread(values) for kind, values in kinds.items()}
        adamw = np.median(seconds["adamw"]["plain"])
        result[name]["plain_over_adamw"] = float(np.median(kinds["plain"]) / adamw)
    return result


def main() -> None:
    """Measures all models and writes the JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5, help="compilations of each")
    parser.add_argument("--steps", type=int, default=31, help="steps of each")
    arguments = parser.parse_args()
    rows = []
    for model in MODELS:
        rows += measure(model, arguments.rounds, arguments.steps)
    path = results.write("update_cost", rows, seeds=[0], **vars(arguments))
    print(path.read_text())


if __name__ == "__main__":
    main()
