"""Parameters seen as matrices, and matrices cut into tiles: pure shape logic.

A parameter has any number of axes; Jorge works on matrices. A :class:`MatrixView` names
the axes that form the rows and those that form the columns. The remaining axes are
batch axes: each of their indices is a matrix of its own, such as a layer of a scanned
stack.

A root of a side of length m takes m**2 numbers to keep and about m**3 operations to
refresh, so long sides are cut. Tiles are equal parts without padding: a padded row
would never receive a gradient, and the root of such a direction grows at every refresh.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jorge_optax._types import Shape


class MatrixView(NamedTuple):
    """Which axes of a parameter form the rows of its matrix, and which the columns.

    Axes named by neither are batch axes. Negative axes count from the end.

    Attributes:
      rows: Axes merged, in this order, into the rows.
      columns: Axes merged, in this order, into the columns.

    Examples:
      >>> from jorge_optax import MatrixView
      >>> # An attention projection (embedding, heads, head size): the default view
      >>> # would be (512 * 8, 64), this one is (512, 8 * 64).
      >>> qkv = MatrixView(rows=(0,), columns=(1, 2))
      >>> # Twelve scanned layers, each with a 512 x 2048 kernel.
      >>> scanned = MatrixView(rows=(1,), columns=(2,))
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]


def default_view(shape: Shape) -> MatrixView | None:
    """Returns the matrix that a parameter of this shape is seen as by default.

    All axes but the last are merged into the rows: a convolution kernel
    ``(3, 3, 64, 128)`` is the matrix ``576 x 128``, a dense kernel is itself.

    Args:
      shape: Shape of the parameter.

    Returns:
      The view, or ``None`` where the matrix would have a side shorter than 2
      (scalars, biases, ``(17, 1)``): such a parameter has no roots.

    Examples:
      >>> from jorge_optax import default_view
      >>> default_view((3, 3, 64, 128))
      MatrixView(rows=(0, 1, 2), columns=(3,))
      >>> default_view((128,)) is None
      True
    """
    if len(shape) < 2 or shape[-1] < 2 or math.prod(shape[:-1]) < 2:
        return None
    return MatrixView(tuple(range(len(shape) - 1)), (len(shape) - 1,))


def normalise_view(shape: Shape, view: MatrixView) -> MatrixView:
    """Makes axes non-negative; raises ValueError if they do not fit the shape."""
    rank = len(shape)
    rows, columns = (tuple(operator.index(axis) for axis in axes) for axes in view)
    named = rows + columns
    if not rows or not columns or any(not -rank <= axis < rank for axis in named):
        raise ValueError(
            f"{view} does not fit a parameter of {rank} axes: rows and columns "
            f"must each name at least one axis in [{-rank}, {rank})"
        )
    rows, columns = (tuple(axis % rank for axis in axes) for axes in (rows, columns))
    if len(set(rows + columns)) != len(rows + columns):
        raise ValueError(f"{view} names an axis twice")
    return MatrixView(rows, columns)


def matrices_shape(shape: Shape, view: MatrixView) -> tuple[int, int, int]:
    """Returns the shape ``(batch, rows, columns)`` of a parameter under a view."""
    rows = math.prod(shape[axis] for axis in view.rows)
    columns = math.prod(shape[axis] for axis in view.columns)
    return math.prod(shape) // max(rows * columns, 1), rows, columns


def as_matrices(leaf: jax.Array, view: MatrixView) -> jax.Array:
    """Turns a parameter into its matrices ``[batch, rows, columns]``."""
    leaf_axes = _axes_in_view_order(leaf.ndim, view)
    return jnp.transpose(leaf, leaf_axes).reshape(matrices_shape(leaf.shape, view))


def from_matrices(matrices: jax.Array, shape: Shape, view: MatrixView) -> jax.Array:
    """Turns matrices ``[batch, rows, columns]`` back into their parameter."""
    order = _axes_in_view_order(len(shape), view)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return matrices.reshape([shape[axis] for axis in order]).transpose(inverse)


def _axes_in_view_order(rank: int, view: MatrixView) -> tuple[int, ...]:
    batch = [axis for axis in range(rank) if axis not in view.rows + view.columns]
    return (*batch, *view.rows, *view.columns)


def default_leaf_view(path: str, shape: Shape) -> MatrixView | None:
    """Returns the default view of a parameter, whatever its path."""
    del path
    return default_view(shape)


@dataclasses.dataclass(frozen=True)
class Tiling:
    """How parameters are seen as matrices and cut into tiles.

    Frozen and hashable, so that :func:`optax.inject_hyperparams` treats it as static.

    Attributes:
      max_dim: The longest side of a tile. It controls the cost: the roots of an r x c
        tile take ``(r**2 + c**2) / (r * c)`` times its memory, 2 for a square.
      view: Function of a parameter's path (``"layers/0/kernel"``) and shape, which
        returns the :class:`MatrixView` of the parameter, or ``None`` to leave the
        parameter without roots (it then takes the grafted optimizer's own step).

    Examples:
      >>> import jorge_optax
      >>> def view(path, shape):
      ...   if "embedding" in path:
      ...     return None
      ...   return jorge_optax.default_view(shape)
      >>> tiling = jorge_optax.Tiling(max_dim=128, view=view)
      >>> optimizer = jorge_optax.jorge(0.1, tiling=tiling)
    """

    max_dim: int = 256
    view: Callable[[str, Shape], MatrixView | None] = dataclasses.field(
        default=default_leaf_view, repr=False
    )

    def __post_init__(self):
        """Rejects a tile size below 1 and a view that is not callable."""
        if not isinstance(self.max_dim, int) or isinstance(self.max_dim, bool):
            raise TypeError(
                "Tiling.max_dim must be a Python int, since it decides shapes; got "
                f"{self.max_dim!r}."
            )
        if self.max_dim < 1:
            raise ValueError(f"Tiling.max_dim must be at least 1, got {self.max_dim}.")
        if not callable(self.view):
            raise TypeError(
                "Tiling.view must be a function of a path and a shape that returns a "
                f"MatrixView or None; got {self.view!r}."
            )
        try:
            hash(self.view)
        except TypeError as error:
            raise TypeError(
                "Tiling.view must be hashable, since plans of stacks are cached by it; "
                f"got {self.view!r}. Pass a function, or an object with __hash__, such "
                "as a frozen dataclass."
            ) from error


class Panel(NamedTuple):
    """A rectangle of a matrix, cut into a regular grid of equal tiles.

    Attributes:
      top: First row of the rectangle.
      left: First column of the rectangle.
      down: Number of tiles from top to bottom.
      across: Number of tiles from left to right.
      rows: Rows of one tile.
      columns: Columns of one tile.
    """

    top: int
    left: int
    down: int
    across: int
    rows: int
    columns: int


def cut_side(length: int, max_dim: int) -> list[tuple[int, int]]:
    """Cuts a side into parts of at most max_dim: ``[(number of parts, length), ...]``.

    The parts are equal, the fewest with lengths in ``[max_dim / 2, max_dim]``; where
    no such number divides the side, the fewest parts of two lengths that differ by 1.

    >>> cut_side(4608, 512), cut_side(300, 128), cut_side(100, 128), cut_side(31, 10)
    ([(9, 512)], [(3, 100)], [(1, 100)], [(3, 8), (1, 7)])
    """
    fewest = -(-length // max_dim)
    for parts in range(fewest, 2 * length // max_dim + 1):
        if length % parts == 0:
            return [(parts, length // parts)]
    short, longer_parts = divmod(length, fewest)
    cuts = [(longer_parts, short + 1), (fewest - longer_parts, short)]
    return [cut for cut in cuts if cut[0]]


def cut_groups(length: int, group: int, max_dim: int) -> list[tuple[int, int]]:
    """Cuts a side such that no part has pieces of two groups, or else whole groups.

    A group is what one index of the first of several merged axes makes: a head, a
    layer, an expert. Where its parts would differ in length, groups are disregarded.

    >>> cut_groups(14 * 72, 72, 256), cut_side(14 * 72, 256)  # 14 heads of 72
    ([(7, 144)], [(4, 252)])
    >>> cut_groups(4 * 576, 576, 256), cut_side(4 * 576, 256)  # 4 layers of 576
    ([(12, 192)], [(9, 256)])
    """
    if length <= max_dim:
        return [(1, length)]
    if group <= max_dim:
        cuts = cut_side(length // group, max_dim // group)
        return [(parts, group * part) for parts, part in cuts]
    (parts, part), *others = cut_side(group, max_dim)
    return cut_side(length, max_dim) if others else [(length // group * parts, part)]


def cut_leaf(shape: Shape, view: MatrixView, max_dim: int) -> tuple[Panel, ...]:
    """Cuts the matrices of a parameter into panels of equal tiles.

    Cuts respect the groups of merged axes, except in the rows of a parameter of four
    axes: those of a convolution are cut without regard to them.
    """
    sides = []
    for axes, grouped in ((view.rows, len(shape) != 4), (view.columns, True)):
        sizes = [shape[axis] for axis in axes]
        group = math.prod(sizes[1:]) if grouped and len(sizes) > 1 else 1
        sides.append(cut_groups(math.prod(sizes), group, max_dim))
    return _panels(*sides)


def cut_panels(rows: int, columns: int, max_dim: int) -> tuple[Panel, ...]:
    """Cuts a ``rows x columns`` matrix into at most four panels of equal tiles."""
    return _panels(cut_side(rows, max_dim), cut_side(columns, max_dim))


def _panels(
    row_cuts: list[tuple[int, int]], column_cuts: list[tuple[int, int]]
) -> tuple[Panel, ...]:
    panels = []
    top = 0
    for down, tile_rows in row_cuts:
        left = 0
        for across, tile_columns in column_cuts:
            panels.append(Panel(top, left, down, across, tile_rows, tile_columns))
            left += across * tile_columns
        top += down * tile_rows
    return tuple(panels)


def cut_tiles(matrices: jax.Array, panel: Panel) -> jax.Array:
    """Cuts the tiles of one panel out of ``[batch, ...]`` matrices: ``[n, r, c]``."""
    height, width = panel.down * panel.rows, panel.across * panel.columns
    rectangle = matrices[
        :, panel.top : panel.top + height, panel.left : panel.left + width
    ]
    grid = rectangle.reshape(-1, panel.down, panel.rows, panel.across, panel.columns)
    return grid.transpose(0, 1, 3, 2, 4).reshape(-1, panel.rows, panel.columns)


def to_tiles(
    leaf: jax.Array, view: MatrixView, panels: tuple[Panel, ...]
) -> list[jax.Array]:
    """Cuts a parameter into the tiles ``[n, r, c]`` of each panel."""
    matrices = as_matrices(leaf, view)
    return [cut_tiles(matrices, panel) for panel in panels]


def from_tiles(
    tiles: list[jax.Array], shape: Shape, view: MatrixView, panels: tuple[Panel, ...]
) -> jax.Array:
    """Puts the tiles of all panels back into a parameter of this shape."""
    return from_matrices(join_tiles(tiles, panels), shape, view)


def join_tiles(tiles: list[jax.Array], panels: tuple[Panel, ...]) -> jax.Array:
    """Puts the tiles of all panels of the matrices back together.

    The inverse of :func:`cut_tiles` over ``panels``, in the same order.
    """
    bands: dict[int, list[jax.Array]] = {}
    for stack, panel in zip(tiles, panels, strict=True):
        tile = (panel.rows, panel.columns)
        grid = stack.reshape(-1, panel.down, panel.across, *tile)
        grid = grid.transpose(0, 1, 3, 2, 4)
        height, width = panel.down * panel.rows, panel.across * panel.columns
        bands.setdefault(panel.top, []).append(grid.reshape(-1, height, width))
    rows = [_concatenate(band, axis=2) for band in bands.values()]
    return _concatenate(rows, axis=1)


def _concatenate(arrays: list[jax.Array], axis: int) -> jax.Array:
    return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays, axis)
