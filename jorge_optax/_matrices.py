"""A leaf seen as matrices, and back: pure shape logic.

A parameter leaf has any number of axes; Jorge thinks in matrices. A
:class:`MatrixView` says which axes of the leaf make the rows and which make the
columns; the axes that it does not name are batch axes, each index of which is a
matrix of its own (the layers of a scanned stack, say).
"""

from __future__ import annotations

import math
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp


class MatrixView(NamedTuple):
    """Which axes of a leaf make the rows of its matrix, and which the columns.

    Axes named by neither are batch axes. Negative axes count from the end.

    Attributes:
      rows: axes merged, in this order, into the rows.
      columns: axes merged, in this order, into the columns.

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


def default_view(shape: tuple[int, ...]) -> MatrixView | None:
    """The matrix that a leaf of this shape is seen as by default.

    All axes but the last are merged into the rows: a convolution kernel
    ``(3, 3, 64, 128)`` is the matrix ``576 x 128``, a dense kernel is itself.

    Args:
      shape: the leaf's shape.

    Returns:
      The view, or ``None`` where the matrix would have a side shorter than 2
      (scalars, biases, ``(17, 1)``): such a leaf has no roots.

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


def normalise_view(shape: tuple[int, ...], view: MatrixView) -> MatrixView:
    """Makes axes non-negative; raises ValueError if they do not fit the shape."""
    rank = len(shape)
    rows, columns = (tuple(operator.index(axis) for axis in axes) for axes in view)
    named = rows + columns
    if not rows or not columns or any(not -rank <= axis < rank for axis in named):
        raise ValueError(
            f"{view} does not fit a leaf of {rank} axes: rows and columns must each "
            f"name at least one axis in [{-rank}, {rank})"
        )
    rows, columns = (tuple(axis % rank for axis in axes) for axes in (rows, columns))
    if len(set(rows + columns)) != len(rows + columns):
        raise ValueError(f"{view} names an axis twice")
    return MatrixView(rows, columns)


def matrices_shape(shape: tuple[int, ...], view: MatrixView) -> tuple[int, int, int]:
    """The shape ``(batch, rows, columns)`` of a leaf under a view."""
    rows = math.prod(shape[axis] for axis in view.rows)
    columns = math.prod(shape[axis] for axis in view.columns)
    return math.prod(shape) // max(rows * columns, 1), rows, columns


def as_matrices(leaf: jax.Array, view: MatrixView) -> jax.Array:
    """Turns a leaf into its ``[batch, rows, columns]`` matrices."""
    leaf_axes = _axes_in_view_order(leaf.ndim, view)
    return jnp.transpose(leaf, leaf_axes).reshape(matrices_shape(leaf.shape, view))


def from_matrices(
    matrices: jax.Array, shape: tuple[int, ...], view: MatrixView
) -> jax.Array:
    """Turns ``[batch, rows, columns]`` matrices back into their leaf."""
    order = _axes_in_view_order(len(shape), view)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return matrices.reshape([shape[axis] for axis in order]).transpose(inverse)


def _axes_in_view_order(rank: int, view: MatrixView) -> tuple[int, ...]:
    batch = [axis for axis in range(rank) if axis not in view.rows + view.columns]
    return (*batch, *view.rows, *view.columns)
