"""Runs a transformation on stacks of tiles in place of the leaves they come from."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from jorge_optax._sharding import in_auto_axes
from jorge_optax._stacks import Plan, from_stacks, plan_tree, to_stacks
from jorge_optax._tiling import Tiling


class TiledState(NamedTuple):
    """State of a transformation of tiles, and of that of the leaves without."""

    tiles: Any
    others: Any


def on_tiles(
    tiles: optax.GradientTransformation,
    others: optax.GradientTransformation | None = None,
    *,
    tiling: Tiling | None = None,
) -> optax.GradientTransformationExtraArgs:
    """``tiles`` for all leaves that are matrices, ``others`` for the rest.

    Args:
      tiles: sees a dict of stacks ``{"RxC": [n, R, C]}``; never sees parameters.
      others: sees the tree with :class:`optax.MaskedNode` in place of the matrices;
        ``None`` passes the other leaves through.
      tiling: the :class:`Tiling`; ``None`` is the default one.

    Returns:
      The transformation; its state is a :class:`TiledState`, or simply the state of
      ``tiles`` where there is no ``others``.
    """
    if not isinstance(tiling, Tiling | None):
        raise TypeError(f"tiling must be a Tiling or None, got {tiling!r}.")
    tiling = tiling or Tiling()

    def split(tree: Any, plan: Plan) -> Any:
        leaves, treedef = jax.tree.flatten(tree)
        return treedef.unflatten(
            optax.MaskedNode() if leaf_plan.view else leaf
            for leaf_plan, leaf in zip(plan.leaves, leaves, strict=True)
        )

    def init_tiles(plan: Plan, dtype: Any) -> Any:
        stacks: Any = {
            key: jax.ShapeDtypeStruct(shape, dtype)
            for key, shape in plan.stacks.items()
        }
        # A scalar stands for "no stacks": it is a valid prefix of any dict of stacks,
        # which optax.tree.map_params asks of `init` on a tree without leaves.
        nothing: Any = jax.ShapeDtypeStruct((), dtype)
        return tiles.init(stacks or nothing)

    def init_fn(params):
        plan = plan_tree(params, tiling)
        tiles_state = init_tiles(plan, _common_dtype(params))
        if others is None:
            return tiles_state
        return TiledState(tiles_state, others.init(split(params, plan)))

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        plan = plan_tree(updates, tiling)
        leaves, treedef = jax.tree.flatten(updates)
        tiles_state = state if others is None else state.tiles
        expected = jax.eval_shape(lambda: init_tiles(plan, _common_dtype(updates)))
        _check_state(plan, expected, tiles_state)

        stacks: Any = {}
        if plan.stacks:
            stacks = to_stacks(plan, leaves)
            stacks, tiles_state = tiles.update(stacks, tiles_state)
        if others is None:
            return treedef.unflatten(from_stacks(plan, stacks, leaves)), tiles_state

        rest, others_state = others.update(split(updates, plan), state.others)
        rest = iter(jax.tree.leaves(rest))
        leaves = [
            leaf if leaf_plan.view else next(rest)
            for leaf_plan, leaf in zip(plan.leaves, leaves, strict=True)
        ]
        merged = treedef.unflatten(from_stacks(plan, stacks, leaves))
        return merged, TiledState(tiles_state, others_state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def at_least_float32(
    inner: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Runs a transformation in float32 at least; updates leave in their own dtype."""
    inner = optax.with_extra_args_support(inner)

    def init_fn(params):
        return inner.init(_widen(params))

    def update_fn(updates, state, params=None, **extra_args):
        updates, state, params = _all_at_once((updates, state, params))

        def update(updates, state, params):
            return inner.update(_widen(updates), state, _widen(params), **extra_args)

        results = in_auto_axes(update, (updates, state), updates, state, params)
        # The state, too: wide gradients would widen the momenta of narrow parameters.
        return jax.tree.map(_cast_like, results, (updates, state))

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _all_at_once(tree: Any) -> Any:
    """The same arrays, but none of them is there before all are.

    XLA updates a parameter as soon as its gradient is there, and so spreads the update
    over the backward pass and over as many CUDA graphs as there are convolutions. An
    update that begins when all gradients are there is one CUDA graph.
    """
    leaves, treedef = jax.tree.flatten(tree)
    traced = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tracer)]
    if traced:
        together = jax.lax.optimization_barrier([leaves[i] for i in traced])
        for i, leaf in zip(traced, together, strict=True):
            leaves[i] = leaf
    return treedef.unflatten(leaves)


def _cast_like(new: Any, old: Any) -> Any:
    dtype = _canonical(old.dtype)
    return new if new.dtype == dtype else new.astype(dtype)


def _widen(tree: Any) -> Any:
    def widen(leaf):
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            return leaf
        wide = jnp.promote_types(dtype, jnp.float32)
        if wide == dtype:
            return leaf
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, wide, sharding=leaf.sharding)
        return leaf.astype(wide)

    return jax.tree.map(widen, tree)


def _common_dtype(tree: Any) -> Any:
    dtypes = {_canonical(leaf.dtype) for leaf in jax.tree.leaves(tree)}
    return jnp.result_type(jnp.float32, *dtypes)


def _canonical(dtype: Any) -> Any:
    """float64 is float32 unless it is enabled."""
    return jax.dtypes.canonicalize_dtype(dtype)


def _check_state(plan: Plan, expected: Any, state: Any) -> None:
    """Raises ValueError if the state was made for other tiles than the plan's."""

    def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        return {
            jax.tree_util.keystr(path): tuple(jnp.shape(leaf)) for path, leaf in leaves
        }

    wanted, found = shapes(expected), shapes(state)
    if wanted == found:
        return
    # What the state lacks names the culprit better than what it has in other numbers.
    places = [p for p in wanted if p not in found] + [*wanted, *found]
    place = next(p for p in places if wanted.get(p) != found.get(p))
    key = next((key for key in plan.stacks if f"'{key}'" in place), None)
    culprits = [
        f"{leaf.path!r} of shape {leaf.shape}"
        for leaf in plan.leaves
        if any(stack == key for stack, _ in leaf.places)
    ]
    raise ValueError(
        "The gradients do not fit the optimizer's state: the state has "
        f"{_shape_text(found.get(place))} at {place}, the gradients need "
        f"{_shape_text(wanted.get(place))}"
        + (f", where the tiles of {', '.join(culprits[:3])} lie" if culprits else "")
        + ". Pass gradients of the same tree and shapes as the parameters given to "
        "init, and restore a state only under the Tiling it was made with; otherwise "
        "call init anew."
    )


def _shape_text(shape: tuple[int, ...] | None) -> str:
    return f"an array of shape {shape}" if shape else "no tiles"
