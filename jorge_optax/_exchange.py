"""Tiles of divided parameters, exchanged by two all-to-alls.

Under FSDP or tensor parallelism a device has a slab of each gradient, and needs whole
tiles. One all-to-all brings fragments of the gradients to the devices that keep the
tiles, another one brings fragments of the steps back to the slabs. The stacks are
divided as in ``_distributed.py``, in the same order: states do not depend on slabs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from jorge_optax._checks import canonical_dtype
from jorge_optax._distributed import (
    Spread,
    StackShapes,
    counting_all,
    mesh_of,
    narrow,
    shard_map,
    specs_of_state,
)
from jorge_optax._routes import Layout, Route, Way, plan_route
from jorge_optax._stacks import LeafPlan, Plan, from_stacks, to_stacks
from jorge_optax._types import PyTree, Stacks


def update_slabs(
    tiles: optax.GradientTransformation, spread: Spread, plan: Plan, dtype: Any
) -> Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]:
    """Returns a function that runs a step on all devices, each with its share.

    Args:
      tiles: The transformation of the stacks.
      spread: How the tiles are spread; it has ``param_specs``.
      plan: The plan of the parameters.
      dtype: Dtype of the stacks.

    Returns:
      A function of leaves, with None for those without roots, and of the state. The
      leaves are divided as ``param_specs`` says, before and after.
    """
    shapes = spread.share(plan.stacks)
    route = plan_route(
        plan.leaves,
        tuple(shapes.items()),
        tuple(layout_of(leaf, spread) if leaf.view else None for leaf in plan.leaves),
        tuple((axis, spread.sharding.mesh.shape[axis]) for axis in spread.axes),
    )
    slabs = [
        None if layout is None else PartitionSpec(*(axes or None for axes in layout))
        for layout in route.layouts
    ]
    specs = specs_of_state(tiles.init, spread, plan.stacks, dtype)

    def step(leaves: Sequence[jax.Array], state: PyTree):
        with jax.named_scope("jorge/exchange_gradients"):
            own = _slabs_to_tiles(route, leaves, spread, shapes)
        with counting_all(plan.stacks):
            steps: PyTree
            steps, state = tiles.update(own, state)
        with jax.named_scope("jorge/exchange_steps"):
            return _tiles_to_slabs(route, steps, leaves, spread), state

    return shard_map(
        step, mesh=mesh_of(spread), in_specs=(slabs, specs), out_specs=(slabs, specs)
    )


def layout_of(leaf: LeafPlan, spread: Spread) -> Layout:
    """Returns which mesh axes divide which axis of a parameter, without remainder.

    Axes that the tiles are not spread over do not count.
    """
    assert spread.param_specs is not None
    spec, rank = spread.param_specs(leaf.path, leaf.shape), len(leaf.shape)
    if reason := _fault(spec, rank, spread):
        raise ValueError(
            f"Spread.param_specs gave {spec!r} for the parameter {leaf.path!r} of "
            f"shape {leaf.shape}: {reason}. Return the PartitionSpec that the "
            "parameter is placed with, PartitionSpec() for one that is not divided."
        )
    layout = []
    for size, entry in zip(leaf.shape, (*spec, *[None] * rank), strict=False):
        names = entry if isinstance(entry, tuple) else (entry,)
        own = tuple(name for name in names if name in spread.axes)
        layout.append(own if size % spread.count(own) == 0 else ())
    return tuple(layout)


def _fault(spec: PartitionSpec, rank: int, spread: Spread) -> str | None:
    """Says why no parameter with this number of axes is placed so."""
    if not isinstance(spec, PartitionSpec):
        return "not a PartitionSpec"
    if len(spec) > rank:
        return f"it has {len(spec)} entries for {rank} axes"
    try:
        NamedSharding(spread.sharding.mesh, spec)
    except Exception as error:  # of several types
        return str(error).rstrip(".")
    return None


def _slabs_to_tiles(
    route: Route, leaves: Sequence[jax.Array], spread: Spread, shapes: StackShapes
) -> Stacks:
    """Makes this device's tiles of the slabs of all devices."""
    fragments = _exchange(to_stacks(route.slabs, leaves), route.there, spread.axes)
    tiles = {}
    for key, (n, rows, columns) in shapes.items():
        height, width = route.slabs.stacks[key][1:]
        grid = fragments[key].reshape(n, rows // height, -1, height, width)
        tiles[key] = grid.transpose(0, 1, 3, 2, 4).reshape(n, rows, columns)
    return tiles


def _tiles_to_slabs(
    route: Route, tiles: Stacks, leaves: Sequence[jax.Array], spread: Spread
) -> list[jax.Array]:
    """Makes this device's slabs of the tiles of all devices."""
    fragments = {}
    for key, own in tiles.items():
        height, width = route.slabs.stacks[key][1:]
        n, rows, columns = own.shape
        grid = own.reshape(n, rows // height, height, columns // width, width)
        fragments[key] = grid.transpose(0, 1, 3, 2, 4).reshape(-1, height, width)
    dtype = spread.gather_dtype
    fragments = _exchange(fragments, route.back, spread.axes, dtype)
    return from_stacks(route.slabs, fragments, leaves)


def _exchange(
    fragments: Stacks,
    ways: dict[str, Way],
    axes: tuple[str, ...],
    dtype: str | None = None,
) -> Stacks:
    """Sends fragments, by one collective for all stacks; those it keeps stay as is."""
    index = jax.lax.axis_index(axes)
    flat = {key: own.reshape(len(own), -1) for key, own in fragments.items()}
    received = _send(flat, ways, axes, index, dtype)
    result, start = {}, 0
    for key, own in flat.items():
        size = own.shape[1]
        end = start + ways[key].volume * size
        new = received[:, start:end].reshape(-1, size)
        pool = jnp.concatenate([new, own, jnp.zeros((1, size), own.dtype)])
        taken = _take(pool, jnp.asarray(ways[key].taken)[index])
        result[key] = taken.reshape(-1, *fragments[key].shape[1:])
        start = end
    return result


def _send(
    flat: Stacks,
    ways: dict[str, Way],
    axes: tuple[str, ...],
    index: jax.Array,
    dtype: str | None,
) -> jax.Array:
    """Returns the messages of all devices to this one, ``[devices, length]``."""
    messages = []
    for key, own in flat.items():
        sent = jnp.asarray(ways[key].sent)[index]
        message = _take(own, sent.reshape(-1))
        messages.append(message.reshape(len(sent), sent.shape[1] * own.shape[1]))
    buffer = jnp.concatenate(messages, axis=1)
    if not buffer.size:
        return buffer
    wide = buffer.dtype
    if dtype is not None:
        buffer = narrow(buffer, canonical_dtype("gather_dtype", dtype))
    received = jax.lax.all_to_all(buffer, axes, 0, 0, tiled=True)
    return received.astype(wide)


def _take(rows: jax.Array, indices: jax.Array) -> jax.Array:
    return jnp.take(rows, indices, axis=0, mode="clip")
