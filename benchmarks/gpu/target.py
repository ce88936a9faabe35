"""Compiles for GPUs without having one, and bounds the time of a program from below."""

import glob
import tempfile
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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
# Operations per second by the vendor's data sheets, dense: in float32, which is what
# precision="highest" asks for, and in TF32, the default for convolutions and products.
PEAKS = {
    "A100": {"float32": 19.5e12, "tf32": 156e12},
    "H100": {"float32": 67e12, "tf32": 495e12},
}
OPTIONS = {
    "xla_dump_hlo_as_text": True,
    "xla_gpu_enable_triton_gemm": False,
    "xla_gpu_enable_analytical_sol_latency_estimator": False,  # fails for an A100
}


class Program(NamedTuple):
    """A compiled function.

    Attributes:
      text: the optimized program, in the order in which it is run.
      thunks: calls of the host, and which of them are in CUDA graphs.
      temporary_bytes: memory needed in addition to arguments and results.
      seconds: time of one compilation.
    """

    text: str
    thunks: str
    temporary_bytes: int
    seconds: float


def mesh_for(device: str, count: int = 1) -> Mesh:
    """Returns a mesh of so many GPUs that are not there, with one axis, "data"."""
    devices = topologies.get_topology_desc(
        platform="cuda",
        topology_name="",
        target_config=TARGET.format(**DEVICES[device]),
        topology=f"1x1x{count}",
    ).devices
    return Mesh(np.array(devices), ("data",))


def compile_for(device: str, function: Any, structs: Any, donate: Any) -> Program:
    """Compiles a function for arguments of these shapes; `donate` has positions."""
    sharding = NamedSharding(mesh_for(device), PartitionSpec())
    structs = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), structs
    )
    return compile_lowered(jax.jit(function, donate_argnums=donate).lower(*structs))


def compile_lowered(lowered: Any) -> Program:
    """Compiles what was lowered for devices of :func:`mesh_for`."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        compiled = lowered.compile(
            compiler_options={"xla_dump_to": folder, **OPTIONS}  # pyright: ignore
        )
        seconds = time.perf_counter() - start
        # Of a program too small for a graph there is only the first.
        files = glob.glob(folder + "/*thunk_sequence.txt")
        files += glob.glob(folder + "/*thunk_sequence_after_thunk_passes.txt")
        with open(files[-1]) as file:
            thunks = file.read()
    memory = compiled.memory_analysis().temp_size_in_bytes
    return Program(compiled.as_text(), thunks, memory, seconds)


def why_not() -> str | None:
    """Says why compiling for a GPU is impossible here; None if it is possible."""
    try:
        compile_for("A100", lambda x: x + 1, (jax.ShapeDtypeStruct((8,), "f4"),), ())
    except (NotImplementedError, RuntimeError) as error:
        return (
            "This machine cannot compile for a GPU. Install the extra `gpu` "
            "(jax-cuda12-plugin of jax's own version) and set JAX_PLATFORMS=cpu. "
            f"The error was: {error}"
        )
    return None


def bound_seconds(
    device: str, *, float32: float = 0, tf32: float = 0, bytes_: float = 0
) -> float:
    """The roofline: no run on this device takes less. Not an estimate of what it takes.

    The larger of the time that the operations need if every unit is always busy, and
    of the time that the bytes need at the full bandwidth of the memory. Operations in
    float32 come after those in TF32, since they need their results.
    """
    peak = PEAKS[device]
    busy = float32 / peak["float32"] + tf32 / peak["tf32"]
    return max(busy, bytes_ / DEVICES[device]["bandwidth"])
