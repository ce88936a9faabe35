"""Compiles updates whose tiles are spread over 8 GPUs, without having one.

Question: what does each of 8 A100s or H100s keep, exchange and launch, and is the
update still one CUDA graph?
Method: XLA's GPU compiler with a description of 8 devices, as in compile.py, whose rows
of a single GPU stand beside these. Parameters are on every GPU, or matrices are
divided by FSDP along their first axis that is a multiple of 8, with tiles beside the
shards. Nothing runs, so nothing is timed.
Answer: docs/distributed.md, from benchmarks/results/gpu_spread.json.

    JAX_PLATFORMS=cpu python -m benchmarks.gpu.spread

After an interruption, the next call compiles what the JSON lacks.
"""

import functools
import sys
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.cost import partition, shares, updates
from benchmarks.gpu import programs, target
from benchmarks.gpu.compile import INTERVAL
from benchmarks.harness import results
from jorge_optax import Sharded, jorge

NAME = "gpu_spread"
GPUS = 8
CASES = results.sized(
    [
        (device, "resnet50", rule, parameters)
        for rule, parameters in (
            ("series", "replicated"),
            ("series", "fsdp"),
            ("whitening", "replicated"),
            ("shampoo", "replicated"),
            ("whitening", "fsdp"),
        )
        for device in target.DEVICES
    ],
    [("A100", "resnet18", "series", "fsdp")],
)


def compile_update(
    device: str, model: str, rule: str, parameters: str
) -> dict[str, Any]:
    """Returns a row: what one of the GPUs keeps, exchanges and launches."""
    mesh = target.mesh_for(device, GPUS)
    sharding, spec = NamedSharding(mesh, PartitionSpec("data")), None
    if parameters == "fsdp":
        sharding = Sharded(mesh, lambda _, shape: partition.fsdp_spec(shape, GPUS))
        spec = lambda leaf: partition.fsdp_spec(leaf.shape, GPUS)  # noqa: E731
    params = partition.place(shares.MODELS[model](), mesh, spec)
    optimizer = jorge(
        0.1,
        0.9,
        1e-3,
        rule=shares.RULES[rule],
        update_interval=INTERVAL,
        sharding=sharding,
    )
    options = {name: value for name, value in target.OPTIONS.items() if "gpu" in name}
    state = partition.place_state(optimizer, params, compiler_options=options)
    outputs = jax.tree.map(lambda leaf: leaf.sharding, (params, state))
    step = jax.jit(
        functools.partial(updates.update, optimizer),
        donate_argnums=(0, 1),
        out_shardings=outputs,
    )
    program = target.compile_lowered(step.lower(params, state, params))
    plain, refresh = programs.plain_and_refresh(program.text)
    return {
        "device": device,
        "model": model,
        "rule": rule,
        "parameters": parameters,
        "gpus": GPUS,
        "state_bytes": partition.device_bytes(state),
        "parameter_bytes": partition.device_bytes(params),
        "temporary_bytes": program.temporary_bytes,
        "collectives": [list(one) for one in partition.collectives(program.text)],
        "plain": plain,
        "refresh": refresh,
        "compile_seconds": round(program.seconds, 1),
        **programs.graph_counts(program.thunks),
    }


def main() -> None:
    """Compiles everything and writes the JSON."""
    if why := target.why_not():
        sys.exit(f"Skipped. {why}")
    rows = results.rows(NAME)
    names = ("device", "model", "rule", "parameters")
    known = {tuple(row[name] for name in names) for row in rows}
    for case in CASES:
        if case not in known:
            rows.append(compile_update(*case))
            print(rows[-1], flush=True)
            results.write(NAME, rows, update_interval=INTERVAL)


if __name__ == "__main__":
    main()
