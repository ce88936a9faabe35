"""Data parallelism: each device has the whole state and its share of the batch."""

from typing import NamedTuple

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec


class Placement(NamedTuple):
    """Where arrays live."""

    whole: NamedSharding  # on every device
    split: NamedSharding  # the first axis over the devices


def place(count: int) -> Placement:
    """Returns a mesh of `count` devices. Batch norm still sees the whole batch."""
    available = jax.devices()
    if not 1 <= count <= len(available):
        raise ValueError(
            f"--devices {count}: jax has {len(available)} here. To simulate them on a "
            "CPU, set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count}"
        )
    mesh = jax.make_mesh(
        (count,), ("data",), axis_types=(AxisType.Auto,), devices=available[:count]
    )
    return Placement(
        NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    )
