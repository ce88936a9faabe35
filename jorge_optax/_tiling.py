"""Matrices cut into tiles, and back: pure shape logic.

A root of a side of length m costs m**2 numbers to keep and about m**3 operations
to refresh, so long sides are cut. Tiles are equal parts without padding: a padded
row would never see a gradient, and the root of such a direction grows at every
refresh.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jorge_optax._matrices import MatrixView, default_view


def _default_leaf_view(path: str, shape: tuple[int, ...]) -> MatrixView | None:
    del path
    return default_view(shape)


@dataclasses.dataclass(frozen=True)
class Tiling:
    """How leaves are seen as matrices and cut into tiles.

    Frozen and hashable, so that :func:`optax.inject_hyperparams` takes it for the
    static fact that it is.

    Attributes:
      max_dim: no side of a tile is longer than this. It is the main knob of cost:
        roots of a tile r x c take
        ``(r**2 + c**2) / (r * c)`` times its memory, 2 for a square.
      view: a function of a leaf's path (``"layers/0/kernel"``) and shape, which
        answers with the :class:`MatrixView` of the leaf, or with ``None`` to leave
        the leaf without roots (it then takes the grafted optimizer's own step).

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
    view: Callable[[str, tuple[int, ...]], MatrixView | None] = dataclasses.field(
        default=_default_leaf_view, repr=False
    )

    def __post_init__(self):
        """Rejects a tile size that is no positive integer, and a view that is none."""
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


class Panel(NamedTuple):
    """A rectangle of a matrix, cut into a regular grid of equal tiles.

    Attributes:
      top: first row of the rectangle.
      left: first column of the rectangle.
      down: number of tiles from top to bottom.
      across: number of tiles from left to right.
      rows: rows of one tile.
      columns: columns of one tile.
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


def cut_panels(rows: int, columns: int, max_dim: int) -> tuple[Panel, ...]:
    """Cuts a ``rows x columns`` matrix into at most four panels of equal tiles."""
    panels = []
    top = 0
    for down, tile_rows in cut_side(rows, max_dim):
        left = 0
        for across, tile_columns in cut_side(columns, max_dim):
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
