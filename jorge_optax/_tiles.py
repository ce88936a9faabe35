"""Parameters as matrices, cut into tiles, gathered into stacks; and back.

A parameter is one matrix, or a batch of matrices, by its view. A matrix is one grid of
equal tiles, padded with zeros at the end. A stack holds all tiles of one shape, of all
parameters. The plan says which tile lies where. It follows from paths, shapes and the
tiling alone, is computed once and cached, and is not part of the state.

A root of a side of length m takes m**2 numbers to keep and about m**3 operations to
refresh: therefore long sides are cut.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jorge_optax._errors import check_type, check_words, checked_leaves
from jorge_optax.views import (
    MatrixView,
    Shape,
    View,
    default_view,
    has_word,
    normalise_view,
)

PyTree: TypeAlias = Any
"""A pytree of arrays: parameters, gradients, or a part of an optimizer's state."""

Stacks: TypeAlias = dict[str, jax.Array]
"""Tiles by shape: ``"RxC"`` to an array ``[n, R, C]`` of all tiles of that shape."""

# Sides are rounded up to lengths that many layers share where they grow by at most this
# share: fewer stacks take fewer kernels, more padding takes more memory.
MAX_GROWTH = 1 / 8


@dataclasses.dataclass(frozen=True)
class Tiling:
    """How parameters are seen as matrices and cut into tiles.

    Frozen and hashable, so that :func:`optax.inject_hyperparams` treats it as static.

    Attributes:
      max_dim: The longest side of a tile. It controls the cost: the roots of an r x c
        tile take ``(r**2 + c**2) / (r * c)`` times its memory, 2 for a square.
      view: Function of a parameter's path (``"layers/0/kernel"``) and shape, which
        returns the :class:`MatrixView` of the parameter, or ``None`` to leave the
        parameter without roots.
      leave_out: Parameters with one of these words in their path have no roots. Each
        word must be in some path, in any case of letters. Between slashes it stands for
        a whole name, as in ``"/head/"``.

    Examples:
      >>> import jorge_optax
      >>> tiling = jorge_optax.Tiling(max_dim=128, leave_out=("lora",))
      >>> optimizer = jorge_optax.jorge(0.1, tiling=tiling)
    """

    max_dim: int = 256
    view: View = dataclasses.field(default=default_view, repr=False)
    leave_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks the options."""
        integer = "a Python int, since it decides shapes"
        check_type("Tiling.max_dim", self.max_dim, int, integer)
        if self.max_dim < 1:
            raise ValueError(f"Tiling.max_dim must be at least 1, got {self.max_dim}.")
        must = "a hashable function of a path and a shape"
        remedy = (
            "It returns a MatrixView or None; make it a function or frozen dataclass."
        )
        check_type("Tiling.view", self.view, Callable, must, remedy)
        check_type("Tiling.view", self.view, Hashable, must, remedy)
        check_words(self.leave_out)


class Grid(NamedTuple):
    """A batch of equal matrices, each cut into ``down * across`` equal tiles.

    Attributes:
      batch: Number of matrices.
      rows: Rows of a matrix.
      columns: Columns of a matrix.
      height: Rows of a tile.
      width: Columns of a tile.
      down: Number of tiles from top to bottom.
      across: Number of tiles from left to right.
      count: Number of tiles of the batch.
    """

    batch: int
    rows: int
    columns: int
    height: int
    width: int
    down: int
    across: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]


class LeafPlan(NamedTuple):
    """Where the tiles of one parameter, or of one device's shard of it, lie.

    Attributes:
      path: Normalised path, ``"layers/0/kernel"``.
      shape: Shape of the parameter or shard.
      view: Its matrix, or ``None`` for a parameter without roots.
      grid: How the matrix is cut.
      matrix: Rows and columns of the matrix of the whole parameter.
      stack: Name of the stack.
      start: Index of the first of its tiles there.
    """

    path: str
    shape: Shape
    view: MatrixView | None = None
    grid: Grid | None = None
    matrix: tuple[int, int] = (0, 0)
    stack: str = ""
    start: int = 0


class Plan(NamedTuple):
    """The parameters, in the order of flattening, and the shapes ``(n, R, C)``."""

    leaves: tuple[LeafPlan, ...]
    shapes: tuple[tuple[str, tuple[int, int, int]], ...]

    @property
    def stacks(self) -> dict[str, tuple[int, int, int]]:
        """Shape of each stack by its name."""
        return dict(self.shapes)


class Real(NamedTuple):
    """How many rows and columns of each tile are real, the others being padding.

    Attributes:
      rows: ``[n]``.
      columns: ``[n]``.
    """

    rows: np.ndarray | jax.Array
    columns: np.ndarray | jax.Array


@functools.lru_cache(maxsize=256)
def plan_tiles(
    leaves: tuple[tuple[str, Shape], ...],
    tiling: Tiling,
    shards: tuple[tuple[Shape, str], ...] | None = None,
) -> Plan:
    """Plans the stacks for parameters given by path and shape.

    Args:
      leaves: Path and shape of each parameter.
      tiling: How the parameters are seen as matrices and cut.
      shards: Of each parameter the shape of a device's shard, and the suffix of its
        stack's name. A long side of a tile is then at most four times its short side.

    Returns:
      The plan. Stacks are named by the shape of their tiles, ``"256x64"``.
    """
    plans: list[LeafPlan] = []
    tiles: dict[str, Sequence[int]] = {}
    for i, (path, whole) in enumerate(leaves):
        shape, suffix = shards[i] if shards else (whole, "")
        view = _view_of(path, whole, tiling)
        if view is None:
            plans.append(LeafPlan(path, shape))
            continue
        grid = cut(shape, view, tiling.max_dim, keep_thin=shards is None)
        key = f"{grid.height}x{grid.width}{suffix}"
        tiles[key] = grid.height, grid.width
        matrix = matrix_shape(whole, view)
        plans.append(LeafPlan(path, shape, view, grid, matrix, key))
    return stack_up(plans, tiles)


def stack_up(leaves: Sequence[LeafPlan], tiles: dict[str, Sequence[int]]) -> Plan:
    """Returns the plan in which the tiles of a stack lie in the order of the leaves."""
    placed, counts = [], dict.fromkeys(tiles, 0)
    for leaf in leaves:
        start = counts.get(leaf.stack, 0)
        placed.append(leaf._replace(start=start))
        if leaf.grid is not None:
            counts[leaf.stack] = start + leaf.grid.count
    shapes = tuple((key, (n, *tiles[key])) for key, n in counts.items() if n)
    return Plan(tuple(placed), shapes)  # pyright: ignore[reportArgumentType]


@functools.lru_cache(maxsize=256)
def fill_idle(plan: Plan, devices: int) -> Plan:
    """Moves tiles of some parameters into larger tiles that would be idle.

    Stacks are divided evenly, so that n tiles take the place of n rounded up to a
    multiple of the devices. What is beyond a multiple moves, if whole parameters make
    it up, to the smallest stack with as many idle tiles: there it is padded more, and
    the stack is called ``"RxC~devices"``, so that a state tells where its tiles lie.
    """
    leaves = list(plan.leaves)
    counts = {key: n for key, (n, *_) in plan.shapes}
    tiles: dict[str, Sequence[int]] = {k: tile for k, (_, *tile) in plan.shapes}
    names = {key: key for key in tiles}
    by_size = sorted(tiles, key=lambda key: math.prod(tiles[key]))
    for rank, guest in enumerate(by_size):
        over, moved = counts[guest] % devices, []
        hosts = (
            key
            for key in by_size[rank + 1 :]
            if all(m <= n for m, n in zip(tiles[guest], tiles[key], strict=True))
            and -counts[key] % devices >= over
        )
        host = next(hosts, None)
        own = [
            (leaf.grid.count, i)
            for i, leaf in enumerate(leaves)
            if leaf.grid and leaf.stack == guest
        ]
        for count, index in sorted(own, reverse=True):
            if count <= over:
                moved.append(index)
                over -= count
        if host is not None and moved and not over:
            for index in moved:
                leaves[index] = leaves[index]._replace(stack=host)
            moving = counts[guest] % devices
            counts[guest], counts[host] = counts[guest] - moving, counts[host] + moving
            names[host] = f"{host}~{devices}"
    leaves = [leaf._replace(stack=names.get(leaf.stack, "")) for leaf in leaves]
    return stack_up(leaves, {names[key]: tile for key, tile in tiles.items()})


def matrix_shape(shape: Shape, view: MatrixView) -> tuple[int, int]:
    """Returns rows and columns of a parameter's matrix."""
    rows, columns = (math.prod(shape[axis] for axis in axes) for axes in view)
    return rows, columns


def cut(shape: Shape, view: MatrixView, max_dim: int, keep_thin: bool = True) -> Grid:
    """Cuts the matrices of a parameter; tiles are at most 4 to 1 unless keep_thin."""
    rows, columns = matrix_shape(shape, view)
    batch = math.prod(shape) // max(rows * columns, 1)
    tall, wide = (
        max_dim if keep_thin else min(max_dim, 4 * m) for m in (columns, rows)
    )
    height, width = cut_side(rows, tall), cut_side(columns, wide)
    down, across = -(-rows // height), -(-columns // width)
    count = batch * down * across
    return Grid(batch, rows, columns, height, width, down, across, count)


def cut_side(length: int, max_dim: int) -> int:
    """Cuts a side into the fewest equal parts of at most max_dim; returns their length.

    The length is rounded up to ``2^k`` or ``3 * 2^k`` where all parts together then
    have at most an eighth more than the side.

    >>> [cut_side(m, 256) for m in (576, 1000, 512, 300, 147, 64, 10)]
    [192, 256, 256, 150, 147, 64, 10]
    """
    part = -(-length // -(-length // max_dim))
    power = 1 << (part - 1).bit_length()
    shared = 3 * power // 4 if part <= 3 * power // 4 and power >= 4 else power
    grown = -(-length // shared) * shared
    fits = shared <= max_dim and grown <= (1 + MAX_GROWTH) * length
    return shared if fits else part


def count_real(plan: Plan) -> dict[str, Real]:
    """Returns the numbers of real rows and columns of the tiles of each stack."""
    parts: dict[str, list[np.ndarray]] = {key: [] for key, _ in plan.shapes}
    for leaf in plan.leaves:
        if leaf.grid is not None:
            grid = leaf.grid
            tops, lefts = np.arange(grid.down), np.arange(grid.across)
            rows = np.minimum(grid.height, grid.rows - tops * grid.height)
            columns = np.minimum(grid.width, grid.columns - lefts * grid.width)
            both = np.stack(np.meshgrid(rows, columns, indexing="ij"))
            parts[leaf.stack].append(np.tile(both.reshape(2, -1), (1, grid.batch)))
    return {key: Real(*np.concatenate(own, 1)) for key, own in parts.items()}


@dataclasses.dataclass(frozen=True)
class OneDevice:
    """Tiles that are not placed; the other layouts derive from it.

    A layout plans the stacks, and runs an update of stacks where the tiles are. The
    update takes stacks of gradients, a state, and the tiles' real rows and columns.
    """

    @property
    def devices(self) -> int:
        """Number of devices that tiles are divided over."""
        return 1

    def plan(self, tree: PyTree, tiling: Tiling) -> Plan:
        """Plans the stacks of a tree; raises for leaves that cannot be trained."""
        return plan_tiles(checked_leaves(tree), tiling)

    def init(self, start: Callable[..., PyTree], plan: Plan, dtype: Any) -> PyTree:
        """Makes a state of all stacks, from zeros."""
        return start(zeros(plan, dtype), count_real(plan))

    def update(
        self,
        step: Callable[..., tuple[Stacks, PyTree]],
        plan: Plan,
        leaves: Sequence[PyTree],
        state: PyTree,
    ) -> tuple[list[PyTree], PyTree]:
        """Runs an update; parameters without roots come back as they are."""
        steps, state = step(to_stacks(plan, leaves), state, count_real(plan))
        return from_stacks(plan, steps, leaves), state

    def stack(self, plan: Plan, leaves: Sequence[PyTree]) -> Stacks:
        """Cuts whole leaves into stacks in the order of the state, idle tiles apart."""
        return to_stacks(plan, leaves)

    def places(self, plan: Plan) -> dict[str, tuple[str, np.ndarray]]:
        """Returns for each parameter its stack, and the indices of its tiles there."""
        return {
            leaf.path: (leaf.stack, np.arange(leaf.start, leaf.start + leaf.grid.count))
            for leaf in plan.leaves
            if leaf.grid is not None
        }

    def place(self, state: PyTree) -> PyTree:
        """Puts on all devices what is not on the mesh yet, such as the step's count."""
        return state


def zeros(plan: Plan, dtype: Any) -> Stacks:
    """Returns stacks of zeros."""
    return {key: jnp.zeros(shape, dtype) for key, shape in plan.shapes}


def to_stacks(plan: Plan, leaves: Sequence[jax.Array]) -> Stacks:
    """Gathers the tiles of the parameters into their stacks."""
    parts: dict[str, list[jax.Array]] = {key: [] for key, _ in plan.shapes}
    sides = {key: tile for key, (_, *tile) in plan.shapes}
    for own, leaf in zip(plan.leaves, leaves, strict=True):
        if own.grid is not None and own.view is not None:
            tiles = to_tiles(leaf, own.view, own.grid)
            height, width = sides[own.stack]
            more = (height - own.grid.height, width - own.grid.width)
            if any(more):
                tiles = jnp.pad(tiles, ((0, 0), (0, more[0]), (0, more[1])))
            parts[own.stack].append(tiles)
    return {
        key: tiles[0] if len(tiles) == 1 else jnp.concatenate(tiles)
        for key, tiles in parts.items()
    }


def from_stacks(
    plan: Plan, stacks: Stacks, leaves: Sequence[jax.Array]
) -> list[jax.Array]:
    """Puts the tiles back; parameters without roots are taken from ``leaves``."""
    result = []
    for own, leaf in zip(plan.leaves, leaves, strict=True):
        if own.grid is None or own.view is None:
            result.append(leaf)
            continue
        tiles = stacks[own.stack][own.start : own.start + own.grid.count]
        tiles = tiles[:, : own.grid.height, : own.grid.width]
        result.append(from_tiles(tiles, own.shape, own.view, own.grid))
    return result


def to_tiles(leaf: jax.Array, view: MatrixView, grid: Grid) -> jax.Array:
    """Cuts a parameter into its tiles ``[n, height, width]``."""
    matrices = jnp.transpose(leaf, _axes_in_view_order(leaf.ndim, view))
    matrices = matrices.reshape(grid.batch, grid.rows, grid.columns)
    below = grid.down * grid.height - grid.rows
    beside = grid.across * grid.width - grid.columns
    if below or beside:
        matrices = jnp.pad(matrices, ((0, 0), (0, below), (0, beside)))
    tiles = matrices.reshape(-1, grid.down, grid.height, grid.across, grid.width)
    return tiles.transpose(0, 1, 3, 2, 4).reshape(-1, grid.height, grid.width)


def from_tiles(
    tiles: jax.Array, shape: Shape, view: MatrixView, grid: Grid
) -> jax.Array:
    """Puts tiles back into a parameter of this shape, and drops the padding."""
    tiles = tiles.reshape(-1, grid.down, grid.across, grid.height, grid.width)
    padded = (grid.batch, grid.down * grid.height, grid.across * grid.width)
    matrices = tiles.transpose(0, 1, 3, 2, 4).reshape(padded)
    matrices = matrices[:, : grid.rows, : grid.columns]
    order = _axes_in_view_order(len(shape), view)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return matrices.reshape([shape[axis] for axis in order]).transpose(inverse)


def _axes_in_view_order(rank: int, view: MatrixView) -> tuple[int, ...]:
    batch = [axis for axis in range(rank) if axis not in view.rows + view.columns]
    return (*batch, *view.rows, *view.columns)


def _view_of(path: str, shape: Shape, tiling: Tiling) -> MatrixView | None:
    if has_word(path, tiling.leave_out):
        return None
    view = tiling.view(path, shape)
    if view is None:
        return None
    try:
        rows, columns = view
        view = normalise_view(shape, MatrixView(rows, columns))
    except (TypeError, ValueError) as error:
        reason = error if isinstance(view, MatrixView) else "not a MatrixView"
        raise ValueError(
            f"Tiling.view gave {view!r} for the parameter {path!r} of shape {shape}: "
            f"{reason}. Return a MatrixView that names existing axes once each, "
            "jorge_optax.views.default_view(path, shape), or None to leave the "
            "parameter out."
        ) from error
    return view if min(matrix_shape(shape, view)) >= 2 and math.prod(shape) else None
