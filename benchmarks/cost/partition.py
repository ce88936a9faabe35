"""Compiles an update for several devices, and lists what they keep and exchange."""

import math
import re
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from benchmarks.cost import updates
from benchmarks.cost.counts import Flops, matmul_flops

OPERATIONS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "reduce-scatter",
)
CALL = re.compile(rf"= (.*?) ({'|'.join(OPERATIONS)})(-start)?\(")
ARRAY = re.compile(r"(pred|[a-z]+)(\d*)\[([\d,]*)\]")


class Collective(NamedTuple):
    """One exchange between devices; `elements` and `bytes` are of its result."""

    operation: str
    elements: int
    bytes: int


class Partitioned(NamedTuple):
    """An update compiled for several devices.

    Attributes:
      state_bytes: of one device's part of the state.
      collectives: what every step exchanges, refresh or not.
      flops: of one device's matrix products.
      temporary_bytes: of one device, in addition to arguments and results.
      cpu_seconds: processor time of lowering and compiling.
    """

    state_bytes: int
    collectives: list[Collective]
    flops: Flops
    temporary_bytes: int
    cpu_seconds: float


def make_mesh(devices: int) -> Mesh:
    """Returns a mesh of so many devices with one axis, "data"."""
    return jax.make_mesh(
        (devices,),
        ("data",),
        axis_types=(AxisType.Auto,),
        devices=jax.devices()[:devices],
    )


def collectives(text: str) -> list[Collective]:
    """Finds all exchanges in a compiled program.

    >>> collectives("x = f32[8,4]{1,0} all-gather(f32[1,4]{1,0} %y), dimensions={0}")
    [Collective(operation='all-gather', elements=32, bytes=128)]
    >>> collectives("x = (bf16[1,4], bf16[1,4]) all-to-all(bf16[1,4] %y, bf16[1,4] %z)")
    [Collective(operation='all-to-all', elements=8, bytes=16)]
    """
    found = []
    for match in CALL.finditer(text):
        arrays = ARRAY.findall(match[1])
        if match[3]:  # of an asynchronous start, the last array is the result
            arrays = arrays[-1:]
        sizes = [math.prod(int(n) for n in dims.split(",") if n) for *_, dims in arrays]
        widths = [int(bits or 8) // 8 for _, bits, _ in arrays]
        size = sum(n * width for n, width in zip(sizes, widths, strict=True))
        found.append(Collective(match[2], sum(sizes), size))
    return found


def place(tree: Any, mesh: Mesh, spec: Any = None) -> Any:
    """Returns shapes on a mesh, whole on each device or as `spec` of a leaf says."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape,
            leaf.dtype,
            sharding=NamedSharding(mesh, spec(leaf) if spec else PartitionSpec()),
        ),
        tree,
    )


def fsdp_spec(shape: tuple[int, ...], devices: int) -> PartitionSpec:
    """Divides a matrix along its first axis that is a multiple of the devices."""
    fits = [axis for axis, size in enumerate(shape) if size % devices == 0]
    if len(shape) < 2:
        return PartitionSpec()
    return PartitionSpec(*[None] * fits[0], "data") if fits else PartitionSpec()


def place_state(optimizer: Any, params: Any, **options: Any) -> Any:
    """Returns the shapes of the state, placed as a jitted `init` places it."""
    lowered = jax.jit(optimizer.init).lower(params)
    shardings = lowered.compile(**options).output_shardings
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=sharding
        ),
        jax.eval_shape(optimizer.init, params),
        shardings,
    )


def device_bytes(tree: Any) -> int:
    """Returns the bytes of one device's part of placed shapes."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * np.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )


def compile_update(optimizer: Any, params: Any) -> Partitioned:
    """Compiles the update of placed parameters, with gradients placed alike."""
    state = place_state(optimizer, params)

    def step(params: Any, state: Any, grads: Any) -> Any:
        return updates.update(optimizer, params, state, grads)

    outputs = jax.tree.map(lambda leaf: leaf.sharding, (params, state))
    start = time.process_time()
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=outputs)
    compiled = jitted.lower(params, state, params).compile()
    seconds = time.process_time() - start
    return Partitioned(
        device_bytes(state),
        collectives(compiled.as_text()),
        matmul_flops(step, params, state, params),
        compiled.memory_analysis().temp_size_in_bytes,
        seconds,
    )
