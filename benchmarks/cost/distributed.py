"""Compiles updates whose tiles are spread over 1 to 8 devices.

Question: how much state does each device keep, what does it compute and exchange, how
long is the compilation, and what does a refresh take compared with exact-root Shampoo,
spread in the same way?
Method: the update alone is compiled for simulated CPU devices, with replicated
parameters and gradients; collectives are counted in the compiled program, operations of
matrix products in the traced program of one device, and compilation in processor time.
Everything is compared with what shares.py calculates. Updates of 64 tiles are run and
timed, Jorge's and Shampoo's in turns: devices share the processor's cores, so that only
their ratio counts. For more devices and larger models, shares.py calculates. Under FSDP
each matrix is divided along its first axis that is a multiple of the devices, and its
tiles are beside their shards ("shards", by `Sharded`), or spread over the devices
("gathers"). Rows of "all-to-alls" are of the tag lab-0.1 (commit c40e72a).
Answer: docs/distributed.md, from benchmarks/results/distributed.json.

    python -m benchmarks.cost.distributed

After an interruption, the next call measures what the JSON lacks.
"""

import os
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.cost import counts, partition, shares
from benchmarks.harness import results
from jorge_optax import Sharded, jorge

NAME = "distributed"
DEVICES = 8
CASES = results.sized(
    [
        ("resnet50", "series", 8),
        ("gpt2_small", "series", 8),
        ("resnet50", "series", 1),
        ("resnet50", "whitening", 8),
        ("resnet50", "shampoo", 8),
        ("gpt2_small", "series", 1),
        ("gpt2_small", "whitening", 8),
        *(("resnet50", "series", n) for n in (4, 2)),
        *(("gpt2_small", "series", n) for n in (4, 2)),
        *(("resnet50", rule, 1) for rule in ("whitening", "shampoo")),
        *(("gpt2_small", "whitening", n) for n in (1, 2, 4)),
        *(("resnet50", rule, n) for rule in ("whitening", "shampoo") for n in (2, 4)),
    ],
    [("resnet18", "series", 2)],
)
FSDP = results.sized(
    [
        (model, "series", 8, way)
        for model in ("resnet50", "gpt2_small")
        for way in ("shards", "gathers")
    ],
    [("resnet18", "series", 8, "shards")],
)
LARGE = results.sized(
    [
        (model, rule, devices)
        for model in ("llama2_70b", "gpt2_xl", "resnet50", "llama2_7b")
        for rule in ("series",)
        for devices in (8, 64, 512, 4096)
    ],
    [("resnet18", "series", 64)],
)
TIMED = results.sized((1, 2, 4, 8), (1, 2))
TILES, SIDE, STEPS = results.sized((64, 128, 7), (4, 8, 2))


def make(rule: str, devices: int, **options: Any) -> Any:
    """Returns the optimizer; on one device it is not spread."""
    sharding = NamedSharding(partition.make_mesh(devices), PartitionSpec("data"))
    return jorge(0.1, 0.9, 1e-3, rule=shares.RULES[rule], sharding=sharding, **options)


def measure(model: str, rule: str, devices: int) -> dict[str, Any]:
    """Returns the row of one compilation."""
    params = shares.MODELS[model]()
    placed = partition.place(params, partition.make_mesh(devices))
    found = partition.compile_update(make(rule, devices), placed)
    share, one = (shares.calculate(params, n, shares.RULES[rule]) for n in (devices, 1))
    return {
        "kind": "compiled",
        "model": model,
        "rule": rule,
        "devices": devices,
        "state_bytes": found.state_bytes,
        "collectives": [list(one) for one in found.collectives],
        "flops": found.flops._asdict(),
        "temporary_bytes": found.temporary_bytes,
        "cpu_seconds": round(found.cpu_seconds, 1),
        "decompositions": share.decompositions,
        "less_by": one.flops.refresh / found.flops.refresh,
        "calculated": {
            "state_bytes": share.state_bytes,
            "flops": share.flops._asdict(),
            "gather_bytes": share.gather_bytes,
        },
        "adamw_bytes": shares.adamw_bytes(params),
        "adamw_fsdp_bytes": shares.adamw_bytes(params, devices),
    }


def measure_fsdp(model: str, rule: str, devices: int, way: str) -> dict[str, Any]:
    """Returns the row of one compilation with divided parameters.

    `way` is "shards", with tiles beside their shards, or "gathers", with spread tiles.
    """
    mesh = partition.make_mesh(devices)
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    if way == "shards":
        sharding = Sharded(mesh, lambda _, shape: partition.fsdp_spec(shape, devices))
    params = shares.MODELS[model]()
    placed = partition.place(
        params, mesh, lambda leaf: partition.fsdp_spec(leaf.shape, devices)
    )
    optimizer = jorge(0.1, 0.9, 1e-3, rule=shares.RULES[rule], sharding=sharding)
    found = partition.compile_update(optimizer, placed)
    return {
        "kind": "fsdp",
        "model": model,
        "rule": rule,
        "devices": devices,
        "way": way,
        "parameter_bytes": counts.tree_bytes(params),
        "state_bytes": found.state_bytes,
        "collectives": [list(one) for one in found.collectives],
        "temporary_bytes": found.temporary_bytes,
        "cpu_seconds": round(found.cpu_seconds, 1),
    }


def calculate(model: str, rule: str, devices: int) -> dict[str, Any]:
    """Returns the row of one calculation."""
    params = shares.MODELS[model]()
    share = shares.calculate(params, devices, shares.RULES[rule])
    return {
        "kind": "calculated",
        "model": model,
        "rule": rule,
        "devices": devices,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        **share._asdict(),
        "flops": share.flops._asdict(),
        "adamw_fsdp_bytes": shares.adamw_bytes(params, devices),
    }


def time_refreshes(devices: int) -> dict[str, Any]:
    """Returns the row of refreshes by Jorge and by Shampoo, in turns."""
    mesh = partition.make_mesh(devices)
    whole = NamedSharding(mesh, PartitionSpec())
    rng = np.random.default_rng(0)
    shape = (TILES * SIDE, SIDE)
    grads = jax.device_put({"w": jnp.asarray(rng.normal(size=shape), "f4")}, whole)
    runs = {}
    for rule in ("series", "shampoo"):
        optimizer = make(rule, devices, update_interval=1)
        step = jax.jit(optimizer.update, donate_argnums=1)
        runs[rule] = (step, optimizer.init(grads))
    seconds: dict[str, list[float]] = {rule: [] for rule in runs}
    for _ in range(STEPS):
        for rule, (step, state) in runs.items():
            start = time.perf_counter()
            updates, state = jax.block_until_ready(step(grads, state, grads))
            seconds[rule].append(time.perf_counter() - start)
            runs[rule] = (step, state)
            del updates
    # The first step compiles.
    median = {rule: float(np.median(values[1:])) for rule, values in seconds.items()}
    return {
        "kind": "timed",
        "devices": devices,
        "tiles": TILES,
        "side": SIDE,
        "seconds": median,
        "ratio": median["shampoo"] / median["series"],
    }


def main() -> None:
    """Measures what the JSON lacks, in a process with eight devices."""
    if jax.device_count() < DEVICES:
        flags = os.environ.get("XLA_FLAGS", "")
        flags += f" --xla_force_host_platform_device_count={DEVICES}"
        environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        # Threads of XLA. With fewer, devices that wait in a collective leave none for
        # the matrix products of those that they wait for.
        environment["NPROC"] = str(4 * DEVICES)
        command = [sys.executable, "-m", "benchmarks.cost.distributed"]
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)
    rows = results.rows(NAME)
    names = ("kind", "model", "rule", "devices", "way")
    done = {tuple(row.get(name) for name in names) for row in rows}
    work = [
        *((calculate, ("calculated", *case, None)) for case in LARGE),
        *((measure, ("compiled", *case, None)) for case in CASES),
        *((measure_fsdp, ("fsdp", *case)) for case in FSDP),
        *((time_refreshes, ("timed", None, None, n, None)) for n in TIMED),
    ]
    for function, key in work:
        if key not in done:
            rows.append(function(*(part for part in key[1:] if part is not None)))
            print(rows[-1], flush=True)
            results.write(NAME, rows)


if __name__ == "__main__":
    main()
