"""Views: which axes of a parameter form the rows of its matrix, and which the columns.

A view is a function of a parameter's path and shape. It is passed as
:attr:`jorge_optax.Tiling.view`, and returns a :class:`jorge_optax.MatrixView`, or
``None`` for a parameter without roots.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

__all__ = ("default_view", "only", "scanned")

Shape: TypeAlias = tuple[int, ...]

# Names of attention's projections in flax, Equinox and elsewhere.
PROJECTION = re.compile(r"(^|[^a-z])(q|k|v|qkv|query|key|value)([^a-z]|$)")
# Words in the names of embeddings, whose rows receive gradients in few batches.
EMBEDDINGS = ("embed", "position", "tok_emb", "pos_emb", "/emb/", "/wte/", "/wpe/")
# Names of the last layer of a language model.
LAST_LAYERS = ("lm_head", "/head/")


class MatrixView(NamedTuple):
    """Which axes of a parameter form the rows of its matrix, and which the columns.

    Axes named by neither are batch axes: each of their indices is a matrix of its own,
    such as a layer of a scanned stack. Negative axes count from the end.

    Attributes:
      rows: Axes merged, in this order, into the rows.
      columns: Axes merged, in this order, into the columns.

    Examples:
      >>> from jorge_optax import MatrixView
      >>> # An attention projection (embedding, heads, head size).
      >>> qkv = MatrixView(rows=(0,), columns=(1, 2))
      >>> # Twelve scanned layers, each with a 512 x 2048 kernel.
      >>> scanned = MatrixView(rows=(1,), columns=(2,))
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]


View = Callable[[str, Shape], MatrixView | None]


def default_view(path: str, shape: Shape) -> MatrixView | None:
    """Returns the matrix that a parameter is seen as by default.

    - All axes but the last are merged into the rows: a convolution kernel
      ``(3, 3, 64, 128)`` is the matrix ``576 x 128``, a dense kernel is itself.
    - Attention's kernels ``(embedding, heads, head size)``, with ``query``, ``key``,
      ``value`` or ``qkv`` in their path, are ``embedding x (heads * head size)``.
    - Biases, and matrices with a side shorter than 2, have no roots.

    Args:
      path: Path of the parameter, ``"layers/0/kernel"``.
      shape: Shape of the parameter.

    Returns:
      The view, or ``None``.

    Examples:
      >>> from jorge_optax import views
      >>> views.default_view("conv/kernel", (3, 3, 64, 128))
      MatrixView(rows=(0, 1, 2), columns=(3,))
      >>> views.default_view("attention/query/kernel", (768, 12, 64))
      MatrixView(rows=(0,), columns=(1, 2))
      >>> views.default_view("attention/query/bias", (12, 64)) is None
      True
    """
    if is_bias(path) or len(shape) < 2 or math.prod(shape[:-1]) < 2:
        return None
    if len(shape) == 3 and PROJECTION.search(path.lower()):
        return MatrixView((0,), (1, 2)) if shape[0] > 1 else None
    if shape[-1] < 2:
        return None
    return MatrixView(tuple(range(len(shape) - 1)), (len(shape) - 1,))


def scanned(*words: str, view: View = default_view) -> View:
    """Makes a view for layers or experts that are stacked along the first axis.

    Parameters with one of the words in their path have one matrix for each index of
    their first axis, and the remaining axes are seen by ``view``.

    Args:
      *words: Words to look for in the path, such as ``"layers"`` or ``"experts"``.
      view: View of one layer, and of all other parameters.

    Returns:
      The view.

    Examples:
      >>> from jorge_optax import Tiling, views
      >>> view = views.scanned("layers")
      >>> view("layers/mlp/kernel", (12, 512, 2048))
      MatrixView(rows=(1,), columns=(2,))
      >>> view("layers/query/kernel", (12, 768, 12, 64))
      MatrixView(rows=(1,), columns=(2, 3))
      >>> tiling = Tiling(view=view)
    """
    if not words or not all(isinstance(word, str) and word for word in words):
        raise TypeError(
            "views.scanned takes the words to look for in a parameter's path, got "
            f"{words!r}: write views.scanned('layers')."
        )
    return _Scanned(words, view)


@dataclasses.dataclass(frozen=True)
class _Scanned:
    words: tuple[str, ...]
    view: View

    def __call__(self, path: str, shape: Shape) -> MatrixView | None:
        if not has_word(path, self.words) or not shape:
            return self.view(path, shape)
        view = self.view(path, shape[1:])
        if view is None:
            return None
        # Negative axes count from the end, and so are the same.
        rows, columns = ((a + (a >= 0) for a in axes) for axes in view)
        return MatrixView(tuple(rows), tuple(columns))


@dataclasses.dataclass(frozen=True)
class Without:
    """A view that leaves out what has one of the words in its path, if anything."""

    words: tuple[str, ...]
    view: View

    def __call__(self, path: str, shape: Shape) -> MatrixView | None:
        """Returns the view of a parameter."""
        return None if has_word(path, self.words) else self.view(path, shape)


class only(tuple[str, ...]):  # noqa: N801, it is written like a function
    """Words for ``leave_out`` that replace a recipe's own, in place of adding to them.

    Examples:
      >>> from jorge_optax import from_adamw, views
      >>> optimizer = from_adamw(3e-4, leave_out=views.only("lm_head"))
      >>> everything = from_adamw(3e-4, leave_out=views.only())
    """

    __slots__ = ()

    def __new__(cls, *words: str) -> only:
        """Takes the words one by one."""
        return super().__new__(cls, words)


def has_word(path: str, words: tuple[str, ...]) -> bool:
    """Returns whether a path has one of the words, in any case of letters.

    Between slashes a word stands for a whole name: ``"/head/"`` is not in
    ``"multihead/kernel"``.
    """
    path = f"/{path}/".lower()
    return any(word.lower() in path for word in words)


def is_bias(path: str) -> bool:
    """Returns whether a path is that of a bias."""
    return "bias" in path.rsplit("/", 1)[-1]


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
