"""Runs a transformation on stacks of tiles instead of on parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jorge_optax._distributed import Spread, init_shares, update_shares
from jorge_optax._exchange import update_slabs
from jorge_optax._fit import check_gradients, check_others, check_tiles
from jorge_optax._stacks import Plan, from_stacks, join_in_fusions, plan_tree, to_stacks
from jorge_optax._tiling import Tiling, matrices_shape
from jorge_optax._types import Dtype, PyTree


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
    spread: Spread | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Applies ``tiles`` to all parameters with roots, ``others`` to the rest.

    Args:
      tiles: Receives a dict of stacks ``{"RxC": [n, R, C]}``, and no parameters; as an
        extra argument ``cut`` the function that cuts these stacks from the gradients.
      others: Receives the tree with :class:`optax.MaskedNode` in place of parameters
        with roots; ``None`` passes the other parameters through.
      tiling: The :class:`Tiling`; ``None`` is the default one.
      factor: Function of the rows and columns of a parameter's matrix that gives the
        number by which its step is multiplied; ``None`` is 1.
      spread: How the tiles are spread over devices; ``None`` does not spread them.

    Returns:
      The transformation; its state is a :class:`TiledState`, or simply the state of
      ``tiles`` where there is no ``others``.
    """
    if not isinstance(tiling, Tiling | None):
        raise TypeError(f"tiling must be a Tiling or None, got {tiling!r}.")
    tiling = tiling or Tiling()
    tiles = optax.with_extra_args_support(tiles)

    def split(tree: PyTree, plan: Plan) -> PyTree:
        leaves, treedef = jax.tree.flatten(tree)
        return treedef.unflatten(
            optax.MaskedNode() if leaf_plan.view else leaf
            for leaf_plan, leaf in zip(plan.leaves, leaves, strict=True)
        )

    def scale(plan: Plan, leaves: list[jax.Array]) -> list[jax.Array]:
        if factor is None:
            return leaves
        return [
            factor(*matrices_shape(own.shape, own.view)[1:]) * leaf
            if own.view
            else leaf
            for own, leaf in zip(plan.leaves, leaves, strict=True)
        ]

    def init_tiles(plan: Plan, dtype: Dtype) -> PyTree:
        if spread and plan.stacks:
            return init_shares(tiles.init, spread, plan.stacks, dtype)
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
        del extra_args
        check_gradients(updates, params)
        plan = plan_tree(updates, tiling)
        leaves, treedef = jax.tree.flatten(updates)
        tiles_state: PyTree = state if others is None else getattr(state, "tiles", None)
        expected = jax.eval_shape(lambda: init_tiles(plan, _common_dtype(updates)))
        check_tiles(plan, updates, expected, tiles_state)

        def step(update, leaves, tiles_state):
            cut = functools.partial(to_stacks, plan, leaves)
            stacks = to_stacks(plan, leaves, join_in_fusions)
            stacks, tiles_state = update(stacks, tiles_state, cut=cut)
            return from_stacks(plan, stacks, leaves), tiles_state

        # None in place of parameters without roots.
        steps = [
            leaf if leaf_plan.view else None
            for leaf_plan, leaf in zip(plan.leaves, leaves, strict=True)
        ]
        if plan.stacks:
            run = functools.partial(step, tiles.update)
            dtype = _common_dtype(updates)
            if spread and spread.param_specs:
                run = update_slabs(tiles, spread, plan, dtype)
            elif spread:
                run = update_shares(step, tiles, spread, plan.stacks, dtype)
            steps, tiles_state = run(steps, tiles_state)
            steps = scale(plan, steps)

        def merge(rest: PyTree) -> PyTree:
            rest = iter(jax.tree.leaves(rest))
            return treedef.unflatten(
                next(rest) if step is None else step for step in steps
            )

        rest = split(updates, plan)
        if others is None:
            return merge(rest), tiles_state
        check_others(rest, jax.eval_shape(others.init, rest), state.others)
        rest, others_state = others.update(rest, state.others)
        return merge(rest), TiledState(tiles_state, others_state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _common_dtype(tree: PyTree) -> Dtype:
    """Returns the widest dtype of the leaves, float32 at least."""
    dtypes = (jax.dtypes.canonicalize_dtype(x.dtype) for x in jax.tree.leaves(tree))
    return jnp.result_type(jnp.float32, *dtypes)
