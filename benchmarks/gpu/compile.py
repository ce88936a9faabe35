"""Compiles for an A100 and an H100, and counts what they would launch.

Question: how many operations do an update and a whole training step launch, are they in
CUDA graphs, are roots copied, is any decomposition called, and what is the least time
that the device allows?
Method: XLA's GPU compiler with a description of the device, by way of
jax.experimental.topologies; operations are counted in the optimized program, graphs in
its sequence of thunks. Products and convolutions are counted in the traced program.
Nothing runs on a GPU, so nothing is timed. Needs the extras `gpu` and `examples`, but
no GPU. Rows that the JSON has are not compiled again: delete it to measure all again.
Answer: docs/results/gpu.md, from benchmarks/results/gpu_compile.json (updates alone)
and gpu_steps.json (whole training steps).

    JAX_PLATFORMS=cpu python -m benchmarks.gpu.compile
    JAX_PLATFORMS=cpu python -m benchmarks.gpu.compile --only steps --optimizers sgd
"""

import argparse
import functools
import itertools
import sys

import jax
import optax

from benchmarks.cost import counts, training_steps
from benchmarks.cost import updates as alone
from benchmarks.cost.counts import least_bytes
from benchmarks.gpu import programs, target
from benchmarks.harness import results
from examples.shared.shampoo import Shampoo
from jorge_optax import Whitening, jorge

INTERVAL = 50
# Those of training_steps, which are the paper's; smaller in a smoke run.
SIZES = results.sized(
    {"resnet50": {}, "deeplabv3_resnet50": {}, "maskrcnn_resnet50_fpn": {}},
    {"resnet50": {"batch": 2, "size": 64}},
)


def optimizers() -> dict[str, optax.GradientTransformationExtraArgs]:
    """Returns the optimizers by name, each with weight decay."""
    options = dict(momentum=0.9, weight_decay=1e-3, update_interval=INTERVAL)
    return {
        **{name: alone.optimizers()[name] for name in ("sgd", "adamw")},
        "jorge": jorge(0.1, **options),
        "whitening": jorge(0.1, rule=Whitening(), **options),
        "shampoo": jorge(0.1, rule=Shampoo(), **options),
    }


def count_stacks(state) -> int:
    """Returns the number of distinct shapes of tiles; 0 for other optimizers."""
    roots = optax.tree.get(state, "roots", None)
    return 0 if roots is None else len(roots.left)


def measure_update(model: str, name: str, device: str) -> dict:
    """Returns a row: what the update launches in a plain step and in a refresh."""
    optimizer, params = optimizers()[name], alone.MODELS[model]()
    state = jax.eval_shape(optimizer.init, params)
    step = functools.partial(alone.update, optimizer)
    program = target.compile_for(device, step, (params, state, params), (0, 1))
    flops = counts.matmul_flops(optimizer.update, params, state, params)
    least = least_bytes(state, params)
    gradients = counts.tree_bytes(params)
    least = {kind: value + gradients for kind, value in least.items()}
    return {
        "model": model,
        "optimizer": name,
        "device": device,
        "stacks": count_stacks(state),
        **_compiled(program),
        "flops": flops._asdict(),
        "least_bytes": least,
        "bound_seconds": {
            "plain": target.bound_seconds(
                device, float32=flops.plain, bytes_=least["plain"]
            ),
            "refresh": target.bound_seconds(
                device, float32=sum(flops), bytes_=least["refresh"]
            ),
        },
    }


def measure_step(model: str, name: str, device: str) -> dict:
    """Returns a row: what a whole training step launches."""
    optimizer = optimizers()[name]
    step = training_steps.make(model, in_scope(optimizer), **SIZES[model])
    structs = step.state, step.batch
    program = target.compile_for(device, step.function, structs, (0,))
    params, _, state = step.state
    whole = counts.matmul_flops(step.function, *structs)
    mine = counts.matmul_flops(optimizer.update, params, state, params)
    others = counts.tree_bytes(step.batch) + 2 * counts.tree_bytes(step.state[1])
    least = {kind: b + others for kind, b in least_bytes(state, params).items()}
    forward_and_backward = whole.plain - mine.plain
    return {
        "model": model,
        "optimizer": name,
        "device": device,
        "batch": step.batch["image"].shape[0],
        "size": step.batch["image"].shape[1],
        "stacks": count_stacks(state),
        **_compiled(program),
        **programs.optimizers_part(program.text, program.thunks),
        "model_flops": forward_and_backward,
        "optimizer_flops": mine._asdict(),
        "least_bytes": least,
        "bound_seconds": {
            kind: target.bound_seconds(
                device, float32=flops, tf32=forward_and_backward, bytes_=least[kind]
            )
            for kind, flops in (("plain", mine.plain), ("refresh", sum(mine)))
        },
    }


def in_scope(optimizer) -> optax.GradientTransformation:
    """Marks the operations of an optimizer, to tell them from those of the model."""

    def scoped(updates, state, params=None):
        with jax.named_scope("optimizer"):
            return optimizer.update(updates, state, params)

    return optax.GradientTransformation(optimizer.init, scoped)


def _compiled(program: target.Program) -> dict:
    plain, refresh = programs.plain_and_refresh(program.text)
    return {
        "plain": plain,
        "refresh": refresh,
        "temporary_bytes": program.temporary_bytes,
        "compile_seconds": round(program.seconds, 1),
        **programs.graph_counts(program.thunks),
    }


def main() -> None:
    """Compiles what the JSON lacks, or the part of it that is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("updates", "steps"))
    parser.add_argument("--optimizers", nargs="+", choices=tuple(optimizers()))
    options = parser.parse_args()
    if why := target.why_not():
        sys.exit(f"Skipped. {why}")
    devices = results.sized(tuple(target.DEVICES), ("A100",))
    names = options.optimizers
    names = names or results.sized(tuple(optimizers()), ("sgd", "jorge"))
    for part, file, measure, models in (
        ("updates", "gpu_compile", measure_update, alone.MODELS),
        ("steps", "gpu_steps", measure_step, SIZES),
    ):
        if options.only not in (part, None):
            continue
        rows = results.rows(file)
        known = {(row["device"], row["model"], row["optimizer"]) for row in rows}
        for device, model, name in itertools.product(devices, models, names):
            if (device, model, name) not in known:
                rows.append(measure(model, name, device))
                print(rows[-1], flush=True)
                results.write(file, rows, update_interval=INTERVAL)


if __name__ == "__main__":
    main()
