"""Data parallelism: each device has the parameters and its share of the batch."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec


class Placement(NamedTuple):
    """Where arrays live."""

    whole: NamedSharding  # on every device
    split: NamedSharding  # the first axis over the devices


def join(coordinator: str, processes: int, process: int) -> None:
    """Joins the processes of a run; its devices are then those of all of them."""
    if not 0 <= process < processes:
        raise ValueError(
            f"--process {process}: the processes are numbered 0 to {processes - 1}."
        )
    jax.distributed.initialize(coordinator, processes, process)
    if jax.process_count() != processes:  # jax takes the number of the coordinator
        raise ValueError(
            f"--processes {processes}: the process at {coordinator} was started with "
            f"--processes {jax.process_count()}. Give all the same number."
        )


def put(tree: Any, sharding: NamedSharding) -> Any:
    """Places arrays that every process has whole."""
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)

    def put_leaf(leaf: Any) -> jax.Array:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return jax.device_put(leaf, sharding)
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(whole.shape, sharding, whole.__getitem__)

    return jax.tree.map(put_leaf, tree)


def place(count: int) -> Placement:
    """Returns a mesh of `count` devices. Batch norm still sees the whole batch."""
    available = jax.devices()
    if not 1 <= count <= len(available):
        raise ValueError(
            f"--devices {count}: jax has {len(available)} here. To simulate them on a "
            "CPU, set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count}"
        )
    if jax.process_count() > 1 and count != len(available):
        raise ValueError(
            f"--devices {count}: {jax.process_count()} processes have "
            f"{len(available)} devices, and a run of several processes takes all."
        )
    mesh = jax.make_mesh(
        (count,), ("data",), axis_types=(AxisType.Auto,), devices=available[:count]
    )
    return Placement(
        NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    )
