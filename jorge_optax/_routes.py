"""Plans which part of a divided parameter goes to which device: shapes alone.

A slab is what one device has of a divided parameter. A fragment is what a slab and a
tile have in common. All fragments of a stack have the same shape, so that each slab and
each tile is a grid of them. They are numbered in the order of the tiles, and inside of
a tile by rows.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple, TypeAlias

import numpy as np

from jorge_optax._stacks import LeafPlan, Plan
from jorge_optax._tiling import MatrixView, Panel, matrices_shape
from jorge_optax._types import Shape

# For each axis of a parameter, the mesh axes that divide it.
Layout: TypeAlias = tuple[tuple[str, ...], ...]


class Way(NamedTuple):
    """Where the fragments of one stack go, in one direction.

    Attributes:
      volume: Number of fragments in the longest message from a device to another.
      sent: For each sender and receiver, which of the sender's fragments are in the
        message, shape ``[devices, devices, volume]``.
      taken: For each device, where its fragments are after the exchange: among the
        received, then among those it had, then one of zeros; ``[devices, n]``.
    """

    volume: int
    sent: np.ndarray
    taken: np.ndarray


class Route(NamedTuple):
    """An exchange of gradients to tiles and back, for all stacks.

    Attributes:
      slabs: A plan of one device's slabs, with fragments in place of tiles.
      layouts: The partition of each parameter, or ``None`` for those without roots.
      there: From slabs to tiles, by stack.
      back: From tiles to slabs, by stack.
    """

    slabs: Plan
    layouts: tuple[Layout | None, ...]
    there: dict[str, Way]
    back: dict[str, Way]


@functools.lru_cache(maxsize=64)
def plan_route(
    leaves: tuple[LeafPlan, ...],
    shares: tuple[tuple[str, tuple[int, int, int]], ...],
    layouts: tuple[Layout | None, ...],
    mesh: tuple[tuple[str, int], ...],
) -> Route:
    """Plans the exchange.

    Args:
      leaves: The plan of the parameters.
      shares: Key of each stack, and the shape of one device's part of it.
      layouts: The partition of each parameter, over axes of ``mesh`` alone.
      mesh: Names and sizes of the axes that the tiles are spread over.

    Returns:
      The route. A side that is cut into tiles of two lengths is not divided in it.
    """
    sizes = dict(mesh)
    fitting = tuple(
        _drop_uneven(leaf, layout) if layout is not None and leaf.view else None
        for leaf, layout in zip(leaves, layouts, strict=True)
    )
    slabs = _plan_slabs(leaves, fitting, sizes)
    numbers = _number_fragments(leaves, fitting, slabs, sizes)
    there, back = {}, {}
    for key, (n, rows, columns) in shares:
        _, height, width = slabs.stacks[key]
        per_tile = rows // height * (columns // width)
        there[key], back[key] = _route(numbers[key], n * per_tile)
    return Route(slabs, fitting, there, back)


def _drop_uneven(leaf: LeafPlan, layout: Layout) -> Layout:
    """Leaves a side undivided that is cut into tiles of two lengths."""
    assert leaf.view is not None
    heights = {panel.rows for panel in leaf.panels}
    widths = {panel.columns for panel in leaf.panels}
    whole = leaf.view.rows * (len(heights) > 1) + leaf.view.columns * (len(widths) > 1)
    return tuple(() if axis in whole else own for axis, own in enumerate(layout))


def _parts(layout: Layout, sizes: dict[str, int]) -> list[int]:
    return [math.prod(sizes[axis] for axis in axes) for axes in layout]


def _plan_slabs(
    leaves: tuple[LeafPlan, ...],
    layouts: tuple[Layout | None, ...],
    sizes: dict[str, int],
) -> Plan:
    """Cuts the slabs into fragments, which have the same shape in all of a stack."""
    shapes: dict[str, tuple[int, int]] = {}
    for leaf, layout in zip(leaves, layouts, strict=True):
        if layout is None or leaf.view is None:
            continue
        parts = _parts(layout, sizes)
        for panel, (key, _) in zip(leaf.panels, leaf.places, strict=True):
            old = shapes.get(key, (0, 0))
            shapes[key] = (
                math.gcd(old[0], _run(leaf.shape, parts, leaf.view.rows, panel.rows)),
                math.gcd(
                    old[1], _run(leaf.shape, parts, leaf.view.columns, panel.columns)
                ),
            )
    counts = dict.fromkeys(shapes, 0)
    plans = []
    for leaf, layout in zip(leaves, layouts, strict=True):
        if layout is None or leaf.view is None:
            plans.append(LeafPlan(leaf.path, leaf.shape, None))
            continue
        parts = _parts(layout, sizes)
        shape = tuple(n // p for n, p in zip(leaf.shape, parts, strict=True))
        batch = matrices_shape(shape, leaf.view)[0]
        down, across = (math.prod(parts[axis] for axis in axes) for axes in leaf.view)
        panels, places, numbers = [], [], []
        for panel, (key, _) in zip(leaf.panels, leaf.places, strict=True):
            height, width = shapes[key]
            own = Panel(
                panel.top,
                panel.left,
                panel.down * panel.rows // down // height,
                panel.across * panel.columns // across // width,
                height,
                width,
            )
            panels.append(own)
            places.append((key, counts[key]))
            numbers.append(batch * own.down * own.across)
            counts[key] += numbers[-1]
        plans.append(
            LeafPlan(
                leaf.path,
                shape,
                leaf.view,
                tuple(panels),
                tuple(places),
                tuple(numbers),
            )
        )
    stacks = {key: (counts[key], *shape) for key, shape in shapes.items()}
    return Plan(tuple(plans), stacks)


def _run(shape: Shape, parts: list[int], axes: tuple[int, ...], tile: int) -> int:
    """Returns the longest part of a side that no slab and no tile boundary cuts."""
    divided = [i for i, axis in enumerate(axes) if parts[axis] > 1]
    if not divided:
        return tile
    inner = axes[divided[-1] :]
    length = math.prod(shape[axis] for axis in inner) // parts[inner[0]]
    return math.gcd(length, tile)


def _number_fragments(
    leaves: tuple[LeafPlan, ...],
    layouts: tuple[Layout | None, ...],
    slabs: Plan,
    sizes: dict[str, int],
) -> dict[str, np.ndarray]:
    """Numbers each device's fragments: in order of the tiles, then inside of a tile."""
    devices = math.prod(sizes.values())
    numbers: dict[str, list[np.ndarray]] = {key: [] for key in slabs.stacks}
    for leaf, layout, slab in zip(leaves, layouts, slabs.leaves, strict=True):
        if layout is None or leaf.view is None:
            continue
        panels = zip(leaf.panels, leaf.places, slab.panels, strict=True)
        for panel, (key, start), own in panels:
            found = [
                _numbers(leaf, slab.shape, _corner(layout, sizes, d), panel, own)
                for d in range(devices)
            ]
            per_tile = panel.rows // own.rows * (panel.columns // own.columns)
            numbers[key].append(np.stack(found) + start * per_tile)
    return {key: np.concatenate(own, axis=1) for key, own in numbers.items()}


def _corner(layout: Layout, sizes: dict[str, int], device: int) -> list[int]:
    """Returns which of the parts along each axis a device has."""
    places = np.unravel_index(device, tuple(sizes.values()))
    place = dict(zip(sizes, map(int, places), strict=True))
    corner = []
    for axes in layout:
        index = 0
        for axis in axes:
            index = index * sizes[axis] + place[axis]
        corner.append(index)
    return corner


def _numbers(
    leaf: LeafPlan, slab: Shape, corner: list[int], panel: Panel, own: Panel
) -> np.ndarray:
    """Numbers the fragments of one panel in one device's slab."""
    view: MatrixView = leaf.view  # pyright: ignore[reportAssignmentType]
    named = view.rows + view.columns
    batch_axes = tuple(a for a in range(len(leaf.shape)) if a not in named)

    def whole_index(axes: tuple[int, ...]) -> np.ndarray:
        """Where the slab's indices along merged axes are in the parameter."""
        index = np.zeros(1, np.int64)
        for axis in axes:
            along = corner[axis] * slab[axis] + np.arange(slab[axis])
            index = (index[:, None] * leaf.shape[axis] + along).reshape(-1)
        return index

    def cut(axes, first, parts, tile, fragment):
        """Returns of each fragment along a side its tile, and its place in it."""
        index = whole_index(axes) - first
        index = index[(index >= 0) & (index < parts * tile)][::fragment]
        return index // tile, index % tile // fragment

    row, inner_row = cut(view.rows, panel.top, panel.down, panel.rows, own.rows)
    column, inner_column = cut(
        view.columns, panel.left, panel.across, panel.columns, own.columns
    )
    down, across = panel.rows // own.rows, panel.columns // own.columns
    batch = whole_index(batch_axes)[:, None, None]
    tiles = (batch * panel.down + row[:, None]) * panel.across + column
    return ((tiles * down + inner_row[:, None]) * across + inner_column).reshape(-1)


def _route(numbers: np.ndarray, share: int) -> tuple[Way, Way]:
    """Plans both ways of one stack.

    Args:
      numbers: The fragments of each device's slabs, ``[devices, n]``.
      share: Number of fragments in each device's tiles, of which the first has the
        first ones.
    """
    devices, count = numbers.shape
    flat = numbers.reshape(-1)
    device, place = np.divmod(np.arange(flat.size), count)
    owner = flat // share
    is_own = owner == device

    # Of several devices with the same slab, one sends it, not the same to all.
    order = np.lexsort((device, flat))
    found, start, copies = np.unique(flat[order], return_index=True, return_counts=True)
    chosen = order[start + found // share % copies]
    has_own = np.zeros(len(found), bool)
    has_own[flat[is_own]] = True
    chosen = chosen[~has_own]
    volume, sent, slot = _messages(
        devices, device[chosen], owner[chosen], place[chosen]
    )
    taken = np.full((devices, share), devices * volume + count, np.int32)
    taken[owner[is_own], flat[is_own] % share] = devices * volume + place[is_own]
    taken[owner[chosen], flat[chosen] % share] = device[chosen] * volume + slot
    there = Way(volume, sent, taken)

    away = ~is_own
    volume, sent, slot = _messages(
        devices, owner[away], device[away], flat[away] % share
    )
    taken = np.zeros((devices, count), np.int32)
    taken[device[is_own], place[is_own]] = devices * volume + flat[is_own] % share
    taken[device[away], place[away]] = owner[away] * volume + slot
    return there, Way(volume, sent, taken)


def _messages(
    devices: int, sender: np.ndarray, receiver: np.ndarray, fragment: np.ndarray
) -> tuple[int, np.ndarray, np.ndarray]:
    """Lists the fragments of each message, and where in its message each one is."""
    pair = sender * devices + receiver
    order = np.argsort(pair, kind="stable")
    lengths = np.bincount(pair, minlength=devices**2)
    slot = np.empty(len(pair), np.int64)
    slot[order] = np.arange(len(pair)) - np.repeat(
        np.cumsum(lengths) - lengths, lengths
    )
    volume = int(lengths.max(initial=0))
    sent = np.zeros((devices, devices, volume), np.int32)
    sent[sender, receiver, slot] = fragment
    return volume, sent, slot
