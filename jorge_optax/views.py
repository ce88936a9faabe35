"""Ready-made views, for :attr:`jorge_optax.Tiling.view`.

A view is a function of a parameter's path and shape that returns the
:class:`jorge_optax.MatrixView` of the parameter, or ``None`` to leave the parameter
without roots. Those below are hashable, and take another view for the parameters that
they do not concern.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from jorge_optax._tiling import MatrixView, default_leaf_view, default_view
from jorge_optax._types import Shape

__all__ = ("scanned", "transformer", "without")

View = Callable[[str, Shape], MatrixView | None]

# Names of attention's projections in flax, Equinox and elsewhere.
PROJECTION = re.compile(r"(^|[^a-z])(q|k|v|qkv|query|key|value)([^a-z]|$)")


def transformer(path: str, shape: Shape) -> MatrixView | None:
    """Views the parameters of a transformer as matrices.

    - Attention's kernels ``(embedding, heads, head size)``, with ``query``, ``key``,
      ``value`` or ``qkv`` in their path, are ``embedding x (heads * head size)``.
    - Embeddings, with ``embed`` or ``position`` in their path, have no roots: tokens
      that a batch lacks are directions without a gradient.
    - Biases have no roots, whatever their shape.
    - All others have the default view.

    Args:
      path: Path of the parameter.
      shape: Shape of the parameter.

    Returns:
      The view, or ``None``.

    Examples:
      >>> from jorge_optax import Tiling, jorge, views
      >>> views.transformer("block/attention/query/kernel", (768, 12, 64))
      MatrixView(rows=(0,), columns=(1, 2))
      >>> views.transformer("block/attention/query/bias", (12, 64)) is None
      True
      >>> optimizer = jorge(0.1, tiling=Tiling(view=views.transformer))
    """
    name = path.lower()
    if "embed" in name or "position" in name or is_bias(name):
        return None
    if len(shape) == 3 and PROJECTION.search(name):
        return MatrixView((0,), (1, 2))
    return default_view(shape)


def scanned(*words: str, view: View = default_leaf_view) -> View:
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
      >>> view = views.scanned("layers", view=views.transformer)
      >>> view("layers/mlp/kernel", (12, 512, 2048))
      MatrixView(rows=(1,), columns=(2,))
      >>> view("layers/query/kernel", (12, 768, 12, 64))
      MatrixView(rows=(1,), columns=(2, 3))
      >>> tiling = Tiling(view=view)
    """
    return _Scanned(_check_words("scanned", words), view)


def without(*words: str, view: View = default_leaf_view) -> View:
    """Makes a view that leaves parameters with one of the words without roots.

    They take the step of ``grafting``: SGD's or Adam's own.

    Args:
      *words: Words to look for in the path, such as ``"embed"`` or ``"lora"``. Between
        slashes a word stands for a whole name: ``"/head/"`` is not in
        ``"multihead/kernel"``.
      view: View of all other parameters.

    Returns:
      The view.

    Examples:
      >>> from jorge_optax import Tiling, views
      >>> view = views.without("lora", "depthwise")
      >>> view("dense/lora_a", (768, 4)) is None
      True
      >>> view("dense/kernel", (768, 768))
      MatrixView(rows=(0,), columns=(1,))
      >>> tiling = Tiling(view=view)
    """
    return _Without(_check_words("without", words), view)


@dataclasses.dataclass(frozen=True)
class _Scanned:
    words: tuple[str, ...]
    view: View

    def __call__(self, path: str, shape: Shape) -> MatrixView | None:
        if not _contains(path, self.words) or not shape:
            return self.view(path, shape)
        view = self.view(path, shape[1:])
        if view is None:
            return None
        # Negative axes count from the end, and so are the same.
        return MatrixView(
            *(tuple(axis + (axis >= 0) for axis in axes) for axes in view)
        )


@dataclasses.dataclass(frozen=True)
class _Without:
    words: tuple[str, ...]
    view: View

    def __call__(self, path: str, shape: Shape) -> MatrixView | None:
        if _contains(path, self.words):
            return None
        return self.view(path, shape)


def _contains(path: str, words: tuple[str, ...]) -> bool:
    """Returns whether a path has one of the words; ``"/word/"`` is a whole name."""
    return any(word in f"/{path}/" for word in words)


def is_bias(path: str) -> bool:
    """Returns whether a path is that of a bias."""
    return "bias" in path.rsplit("/", 1)[-1]


def _check_words(name: str, words: tuple[str, ...]) -> tuple[str, ...]:
    if not words or not all(isinstance(word, str) and word for word in words):
        raise TypeError(
            f"views.{name} takes the words to look for in a parameter's path, got "
            f"{words!r}: write views.{name}('layers')."
        )
    return words
