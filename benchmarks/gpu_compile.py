"""What would a GPU run? Compiled for an A100 and an H100 on a machine without one.

Question: how many operations does an update launch, are they one CUDA graph, are roots
copied, is any decomposition called?
Method: XLA's GPU compiler with a description of the device, by way of
jax.experimental.topologies; operations are counted in the optimized program, graphs in
its sequence of thunks. Nothing runs, so there is no timing, and none is claimed. Needs
the extra `gpu`.
Answer: docs/results.md, from benchmarks/results/gpu_compile.json.

    JAX_PLATFORMS=cpu python -m benchmarks.gpu_compile
"""

import collections
import glob
import math
import re
import sys
import tempfile

import jax
import numpy as np
import optax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import results
from benchmarks.update_cost import MODELS, optimizers

TARGET = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {optin}
  core_count: {cores} fpus_per_core: {fpus} clock_rate_ghz: {clock}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  memory_bandwidth: {bandwidth} l2_cache_size: {l2} device_memory_size: 85899345920
  cuda_compute_capability {{ major: {major} minor: 0 feature_extension: {features} }}
  driver_version: "12.9.0" runtime_version: "12.9.0"
  compile_time_toolkit_version: "12.9.0" dnn_version: "9.8.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 patch: 0 }}
device_description_str: "{name}"
"""
DEVICES = {
    "A100": {
        "shared": 164 * 1024,
        "optin": 163 * 1024,
        "cores": 108,
        "fpus": 64,
        "clock": 1.41,
        "bandwidth": 2_039_000_000_000,
        "l2": 40 << 20,
        "major": 8,
        "features": "NONE",
        "name": "NVIDIA A100-SXM4-80GB",
    },
    "H100": {
        "shared": 228 * 1024,
        "optin": 227 * 1024,
        "cores": 132,
        "fpus": 128,
        "clock": 1.98,
        "bandwidth": 3_352_000_000_000,
        "l2": 50 << 20,
        "major": 9,
        "features": "ACCELERATED_FEATURES",
        "name": "NVIDIA H100 80GB HBM3",
    },
}
BYTES = {"f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "f64": 8, "pred": 1}
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (\(.*?\)|\S+) ([\w\-]+)\(")


def compile_for(device: str, function, structs, donate_argnums):
    """The compiled function, and the text of its thunks."""
    devices = topologies.get_topology_desc(
        platform="cuda",
        topology_name="",
        target_config=TARGET.format(**DEVICES[device]),
        topology="1x1x1",
    ).devices
    sharding = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec())
    structs = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), structs
    )
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "xla_dump_to": folder,
            "xla_dump_hlo_as_text": True,
            "xla_gpu_enable_triton_gemm": False,
            "xla_gpu_enable_analytical_sol_latency_estimator": False,
        }
        jitted = jax.jit(function, donate_argnums=donate_argnums)
        compiled = jitted.lower(*structs).compile(compiler_options=options)
        pattern = folder + "/*thunk_sequence_after_thunk_passes.txt"
        with open(sorted(glob.glob(pattern))[-1]) as file:
            return compiled, file.read()


def count(text: str) -> dict[str, collections.Counter]:
    """Operations by computation: the entry, and the branches of conditionals."""
    computations, branches, name = {}, [], None
    for line in text.splitlines():
        head = re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line)
        if head:
            name = "entry" if head[1] else head[2]
            computations[name] = collections.Counter()
        instruction = INSTRUCTION.match(line)
        if not instruction or name is None:
            continue
        shape, operation = instruction.groups()
        found = computations[name]
        if operation == "fusion":
            found["kernels"] += 1
        elif operation == "conditional":
            found["conditionals"] += 1
            branches += re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", line)
            for names in re.findall(r"branch_computations=\{([^}]*)\}", line):
                branches += [part.strip().lstrip("%") for part in names.split(",")]
        elif operation == "copy":
            found["copies"] += 1
            found["copied_bytes"] += _bytes(shape)
        elif operation == "custom-call":
            target = re.findall(r'custom_call_target="([^"]+)"', line)[0]
            kind = "matmuls" if "cublas" in target else "other_calls"
            found["cusolver_calls" if "cusolver" in target else kind] += 1
    return {key: computations[key] for key in ("entry", *branches)}


def _bytes(shape: str) -> int:
    match = re.match(r"(\w+)\[([\d,]*)\]", shape)
    if not match:
        return 0
    sizes = [int(size) for size in match[2].split(",") if size]
    return BYTES.get(match[1], 4) * math.prod(sizes)


def measure(model: str, name: str, optimizer, device: str) -> dict:
    """One row: what a plain step and a refresh step launch."""

    def step(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = MODELS[model]()
    state = jax.eval_shape(optimizer.init, params)
    compiled, thunks = compile_for(device, step, (params, state, params), (0, 1))
    entry, *branches = count(compiled.as_text()).values()
    # The branch that keeps the roots has no matrix products.
    branches = sorted(branches, key=lambda branch: branch["matmuls"])
    plain = entry + branches[0] if branches else entry
    refresh = entry + branches[-1] if branches else None
    top = re.findall(r"^\d+: (k\w+)", thunks, re.MULTILINE)
    return {
        "model": model,
        "optimizer": name,
        "device": device,
        "plain": _row(plain),
        "refresh": refresh and _row(refresh),
        "one_cuda_graph": top == ["kCommandBuffer"],
        "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,
    }


def _row(found: collections.Counter) -> dict:
    names = ("kernels", "matmuls", "copies", "conditionals", "cusolver_calls")
    row = {name: found[name] for name in (*names, "other_calls")}
    return {
        **row,
        "operations": sum(row.values()),
        "copied_bytes": found["copied_bytes"],
    }


def main() -> None:
    """Compiles all and writes the JSON."""
    rows = []
    try:
        for device in results.sized(DEVICES, ("A100",)):
            for model in MODELS:
                for name, optimizer in optimizers().items():
                    rows.append(measure(model, name, optimizer, device))
                    print(rows[-1], flush=True)
    except (NotImplementedError, RuntimeError) as error:
        sys.exit(
            "Skipped: this machine cannot compile for a GPU. Install the extra `gpu` "
            "(jax-cuda12-plugin of jax's own version) and set JAX_PLATFORMS=cpu. "
            f"The error was: {error}"
        )
    results.write("gpu_compile", rows)


if __name__ == "__main__":
    main()
