"""Gathers tiles of equal shape from all parameters into one stack, and back.

The plan says which tile of which parameter lies where in which stack. It follows from
paths, shapes and the tiling alone, is computed once and cached, and is used by ``init``
and ``update``; it is not part of the state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jorge_optax._tiling import (
    MatrixView,
    Panel,
    Tiling,
    cut_leaf,
    from_tiles,
    matrices_shape,
    normalise_view,
    to_tiles,
)
from jorge_optax._types import PyTree, Shape, Stacks


class LeafPlan(NamedTuple):
    """Where the tiles of one parameter lie.

    Attributes:
      path: Normalised path, ``"layers/0/kernel"``.
      shape: Shape of the parameter.
      view: The parameter's matrix, or ``None`` for a parameter without roots.
      panels: The panels that the matrix is cut into.
      places: For each panel, key of its stack and index of its first tile there.
      sizes: For each panel, its number of tiles.
    """

    path: str
    shape: Shape
    view: MatrixView | None
    panels: tuple[Panel, ...] = ()
    places: tuple[tuple[str, int], ...] = ()
    sizes: tuple[int, ...] = ()


class Plan(NamedTuple):
    """The parameters, in the order of flattening, and the shapes of the stacks."""

    leaves: tuple[LeafPlan, ...]
    stacks: dict[str, tuple[int, int, int]]


def normalise_path(path: jax.tree_util.KeyPath) -> str:
    """Joins the keys of a path by slashes, alike for dicts, modules and nnx.

    In ``init``, nnx has a ``Variable`` node around each array, whose path ends in an
    attribute ``value`` that it does not have in ``update``: it is dropped.
    """
    keys = list(path)
    if len(keys) > 1 and keys[-1] == jax.tree_util.GetAttrKey("value"):
        keys.pop()
    return jax.tree_util.keystr(tuple(keys), simple=True, separator="/")


def plan_tree(tree: PyTree, tiling: Tiling) -> Plan:
    """Plans the stacks of a pytree of arrays or ShapeDtypeStructs."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    for path, leaf in leaves:
        _check_leaf(normalise_path(path), leaf)
    return plan_stacks(
        tuple((normalise_path(path), tuple(leaf.shape)) for path, leaf in leaves),
        tiling,
    )


@functools.lru_cache(maxsize=256)
def plan_stacks(leaves: tuple[tuple[str, Shape], ...], tiling: Tiling) -> Plan:
    """Plans the stacks for parameters given by path and shape.

    Args:
      leaves: Path and shape of each parameter.
      tiling: How the parameters are seen as matrices and cut.

    Returns:
      The plan. Stacks are named by the shape of their tiles, ``"256x64"``.
    """
    plans = []
    counts: dict[str, int] = {}
    shapes: dict[str, tuple[int, int]] = {}
    for path, shape in leaves:
        view = _view_of(path, shape, tiling)
        if view is None:
            plans.append(LeafPlan(path, shape, None))
            continue
        batch = matrices_shape(shape, view)[0]
        panels = cut_leaf(shape, view, tiling.max_dim)
        sizes = tuple(batch * panel.down * panel.across for panel in panels)
        places = []
        for panel, size in zip(panels, sizes, strict=True):
            key = f"{panel.rows}x{panel.columns}"
            shapes[key] = (panel.rows, panel.columns)
            places.append((key, counts.get(key, 0)))
            counts[key] = places[-1][1] + size
        plans.append(LeafPlan(path, shape, view, panels, tuple(places), sizes))
    return Plan(tuple(plans), {key: (counts[key], *shapes[key]) for key in counts})


def to_stacks(
    plan: Plan,
    leaves: Sequence[jax.Array],
    join: Callable[[list[jax.Array]], jax.Array] = jnp.concatenate,
) -> Stacks:
    """Gathers the tiles of the parameters into their stacks, in one dtype."""
    parts: dict[str, list[jax.Array]] = {key: [] for key in plan.stacks}
    for leaf_plan, leaf in zip(plan.leaves, leaves, strict=True):
        if leaf_plan.view is None:
            continue
        tiles = to_tiles(leaf, leaf_plan.view, leaf_plan.panels)
        for own, (key, _) in zip(tiles, leaf_plan.places, strict=True):
            parts[key].append(own)
    return {key: join(tiles) for key, tiles in parts.items()}


def join_in_fusions(parts: list[jax.Array]) -> jax.Array:
    """Concatenates stacks such that a GPU joins them in the kernels that use them.

    XLA's GPU compiler concatenates two to five arrays by a kernel that computes nothing
    else, and writes the result out. A sum of arrays that are padded it fuses.
    """
    if not 2 <= len(parts) <= 5:
        return jnp.concatenate(parts)
    return jax.lax.platform_dependent(parts, cpu=jnp.concatenate, default=_sum_padded)


def _sum_padded(parts: list[jax.Array]) -> jax.Array:
    length = sum(map(len, parts))
    padded, start = [], 0
    for own in parts:
        # Minus zero changes no number that it is added to, not even minus zero.
        nothing = jnp.array(-0.0, own.dtype)
        around = (start, length - start - len(own), 0), (0, 0, 0), (0, 0, 0)
        padded.append(jax.lax.pad(own, nothing, around))
        start += len(own)
    return functools.reduce(jnp.add, padded)


def from_stacks(
    plan: Plan, stacks: Stacks, leaves: Sequence[jax.Array]
) -> list[jax.Array]:
    """Puts the tiles back; parameters without roots are taken from ``leaves``."""
    result = []
    starts = iter(_starts(plan, stacks))
    for leaf_plan, leaf in zip(plan.leaves, leaves, strict=True):
        if leaf_plan.view is None:
            result.append(leaf)
            continue
        tiles = []
        for size, (key, _) in zip(leaf_plan.sizes, leaf_plan.places, strict=True):
            start = next(starts)
            if size < len(stacks[key]):
                tiles.append(jax.lax.dynamic_slice_in_dim(stacks[key], start, size))
            else:
                tiles.append(stacks[key])
        shape, view, panels = leaf_plan.shape, leaf_plan.view, leaf_plan.panels
        result.append(from_tiles(tiles, shape, view, panels))
    return result


def _starts(plan: Plan, stacks: Stacks) -> Sequence[jax.typing.ArrayLike]:
    """Returns where in its stack each panel of each parameter begins.

    XLA's CPU compiler deduplicates equal kernels, but kernels that slice at different
    constants are not equal: with many layers it would compile one for each. It does not
    treat the result of a conditional as a constant, even if both branches agree.
    """
    starts = [start for leaf in plan.leaves for _, start in leaf.places]
    if not any(starts):
        return starts
    number = next(iter(stacks.values())).ravel()[0]

    def constants(number: jax.Array) -> list[jax.Array]:
        del number
        # Signed: jax 0.6 drops gradients through a vmapped slice at unsigned indices.
        return [jnp.int32(start) for start in starts]

    def unknown(number: jax.Array) -> list[jax.Array]:
        return jax.lax.cond(number > 0, constants, constants, number)

    # A GPU would copy them at each step, and compiles the same code for constants.
    return jax.lax.platform_dependent(number, cpu=unknown, default=constants)


def _view_of(path: str, shape: Shape, tiling: Tiling) -> MatrixView | None:
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
            "jorge_optax.default_view(shape), or None to leave the parameter out."
        ) from error
    if min(matrices_shape(shape, view)) < 1 or min(matrices_shape(shape, view)[1:]) < 2:
        return None
    return view


def _check_leaf(path: str, leaf: PyTree) -> None:
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or not hasattr(leaf, "shape"):
        raise TypeError(
            f"The parameter {path!r} is {leaf!r}, not an array: Jorge takes pytrees of "
            "floating-point arrays. Make it an array, or leave it out with "
            "optax.masked or optax.partition."
        )
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(
            f"The parameter {path!r} of shape {tuple(leaf.shape)} has dtype {dtype}, "
            "but Jorge's roots are real. Wrap the optimizer in "
            "optax.contrib.split_real_and_imaginary."
        )
    if jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 2:
        raise TypeError(
            f"The parameter {path!r} of shape {tuple(leaf.shape)} has dtype {dtype}, "
            "but Jorge trains parameters of 16 bits or more: smaller ones would round "
            "its steps away. Keep the parameter in bfloat16 or float32 and cast it in "
            "the forward pass, or leave it out with optax.masked or optax.partition."
        )
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(
            f"The parameter {path!r} of shape {tuple(leaf.shape)} has dtype {dtype}, "
            "but Jorge trains floating-point parameters only. Leave it out with "
            "optax.masked or optax.partition; of a flax.nnx module, pass "
            "nnx.state(model, nnx.Param)."
        )
