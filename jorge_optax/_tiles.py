"""Runs a transformation on stacks of tiles instead of on parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jorge_optax._stacks import Plan, from_stacks, plan_tree, to_stacks
from jorge_optax._tiling import Tiling, matrices_shape
from jorge_optax._types import Dtype, PyTree, Shape


class TiledState(NamedTuple):
    """States of the transformations of tiles and of parameters without roots."""

    tiles: PyTree
    others: PyTree


def on_tiles(
    tiles: optax.GradientTransformation,
    others: optax.GradientTransformation | None = None,
    *,
    tiling: Tiling | None = None,
    factor: Callable[[int, int], float] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Applies ``tiles`` to all parameters with roots, ``others`` to the rest.

    Args:
      tiles: Receives a dict of stacks ``{"RxC": [n, R, C]}``, and no parameters.
      others: Receives the tree with :class:`optax.MaskedNode` in place of parameters
        with roots; ``None`` passes the other parameters through.
      tiling: The :class:`Tiling`; ``None`` is the default one.
      factor: Function of the rows and columns of a parameter's matrix that gives the
        number by which its step is multiplied; ``None`` is 1.

    Returns:
      The transformation; its state is a :class:`TiledState`, or simply the state of
      ``tiles`` where there is no ``others``.
    """
    if not isinstance(tiling, Tiling | None):
        raise TypeError(f"tiling must be a Tiling or None, got {tiling!r}.")
    tiling = tiling or Tiling()

    def split(tree: PyTree, plan: Plan) -> PyTree:
        leaves, treedef = jax.tree.flatten(tree)
        return treedef.unflatten(
            optax.MaskedNode() if leaf_plan.view else leaf
            for leaf_plan, leaf in zip(plan.leaves, leaves, strict=True)
        )

    def join(plan: Plan, stacks: PyTree, leaves: list[jax.Array]) -> list[jax.Array]:
        joined = from_stacks(plan, stacks, leaves)
        if factor is None:
            return joined
        return [
            factor(*matrices_shape(own.shape, own.view)[1:]) * leaf
            if own.view
            else leaf
            for own, leaf in zip(plan.leaves, joined, strict=True)
        ]

    def init_tiles(plan: Plan, dtype: Dtype) -> PyTree:
        stacks: PyTree = {
            key: jax.ShapeDtypeStruct(shape, dtype)
            for key, shape in plan.stacks.items()
        }
        # A scalar stands for "no stacks": it is a valid prefix of any dict of stacks,
        # which optax.tree.map_params asks of `init` on a tree without leaves.
        nothing: PyTree = jax.ShapeDtypeStruct((), dtype)
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

        stacks: PyTree = {}
        if plan.stacks:
            stacks = to_stacks(plan, leaves)
            stacks, tiles_state = tiles.update(stacks, tiles_state)
        if others is None:
            return treedef.unflatten(join(plan, stacks, leaves)), tiles_state

        rest, others_state = others.update(split(updates, plan), state.others)
        rest = iter(jax.tree.leaves(rest))
        leaves = [
            leaf if leaf_plan.view else next(rest)
            for leaf_plan, leaf in zip(plan.leaves, leaves, strict=True)
        ]
        merged = treedef.unflatten(join(plan, stacks, leaves))
        return merged, TiledState(tiles_state, others_state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _common_dtype(tree: PyTree) -> Dtype:
    """Returns the widest dtype of the leaves, float32 at least."""
    dtypes = (jax.dtypes.canonicalize_dtype(x.dtype) for x in jax.tree.leaves(tree))
    return jnp.result_type(jnp.float32, *dtypes)


def _check_state(plan: Plan, expected: PyTree, state: PyTree) -> None:
    """Raises ValueError if the state was made for other tiles than the plan's."""

    def shapes(tree: PyTree) -> dict[str, Shape]:
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        return {
            jax.tree_util.keystr(path): tuple(jnp.shape(leaf)) for path, leaf in leaves
        }

    wanted, found = shapes(expected), shapes(state)
    if wanted == found:
        _check_dtypes(expected, state)
        return
    # A place that the state lacks names the culprit best.
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
        "init, and restore a state only under the Tiling and the rule it was made "
        "with; otherwise call init again."
    )


def _check_dtypes(expected: PyTree, state: PyTree) -> None:
    """Raises ValueError if count, roots or statistics were cast to another dtype.

    Momenta may be narrower than these gradients ask for: they keep their dtype.
    """
    for name in ("count", "roots", "statistics"):
        pairs = zip(
            jax.tree_util.tree_flatten_with_path(getattr(expected, name, ()))[0],
            jax.tree.leaves(getattr(state, name, ())),
            strict=True,
        )
        for (path, wanted), found in pairs:
            if wanted.dtype != jnp.result_type(found):
                raise ValueError(
                    f"The optimizer's state has dtype {jnp.result_type(found)} at "
                    f"{name}{jax.tree_util.keystr(path)}, but the optimizer keeps "
                    f"{wanted.dtype} there. Restore a state with the root_dtype it was "
                    "made with, or cast it to this one; otherwise call init again."
                )


def _shape_text(shape: Shape | None) -> str:
    return f"an array of shape {shape}" if shape else "no tiles"
