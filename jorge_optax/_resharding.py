"""Fits a saved state to another number of devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from jorge_optax._stacks import Plan, plan_tree
from jorge_optax._tiling import Tiling
from jorge_optax._types import PyTree


def reshard_state(
    state: optax.OptState,
    like: optax.OptState,
    params: PyTree,
    *,
    tiling: Tiling | None = None,
) -> optax.OptState:
    """Fits a state to the number of devices that its tiles are spread over now.

    Stacks are in the same order on any number of devices and differ only in the idle
    tiles at their end. This replaces the idle tiles and places every array as ``like``
    is placed. It changes nothing else, and refuses a state of other parameters.

    Args:
      state: A state saved on any number of devices, with the structure of ``like`` and
        the shapes that it was saved with.
      like: A new state of the optimizer that will use it, ``optimizer.init(params)``.
      params: The parameters, or arrays with the same tree and shapes.
      tiling: The :class:`Tiling` that the optimizer was made with.

    Returns:
      The state, with the shapes, dtypes and shardings of ``like``.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax.sharding import NamedSharding, PartitionSpec as P
      >>> from jorge_optax import jorge, reshard_state
      >>> params = {"w": jnp.ones((3, 2))}
      >>> saved = jax.device_get(jorge(0.1).init(params))  # on one device
      >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
      >>> optimizer = jorge(0.1, sharding=NamedSharding(mesh, P("data")))
      >>> state = reshard_state(saved, optimizer.init(params), params)
    """
    plan = plan_tree(params, tiling or Tiling())
    old_tree, new_tree = (jax.tree.structure(tree) for tree in (state, like))
    if old_tree != new_tree:
        raise ValueError(
            f"The state has another structure than the optimizer's: {old_tree} instead "
            f"of {new_tree}. Make the optimizer with the rule, grafting and learning "
            "rate schedule that the state was saved with."
        )
    return jax.tree_util.tree_map_with_path(
        lambda path, old, new: _fit(plan, path, old, new), state, like
    )


def _fit(plan: Plan, path: jax.tree_util.KeyPath, old: Any, new: Any) -> jax.Array:
    place = jax.tree_util.keystr(path)
    if not isinstance(new, jax.Array):
        raise TypeError(
            f"like must be a state of arrays, optimizer.init(params), but has {new!r} "
            f"at {place}."
        )
    keys = (getattr(key, "key", None) for key in path)
    tiles = next((plan.stacks[key][0] for key in keys if key in plan.stacks), None)
    _check(place, tiles, old, new)
    if old.shape == new.shape:
        return jax.device_put(old, new.sharding)
    # Old tiles on all devices of the new mesh, one stack at a time.
    whole: Any = new.sharding
    if isinstance(whole, NamedSharding):
        whole = NamedSharding(whole.mesh, PartitionSpec())
    replace_idle = jax.jit(
        lambda old, new: jnp.concatenate([old[:tiles], new[tiles:]]),
        out_shardings=new.sharding,
    )
    return replace_idle(jax.device_put(old, whole), new)


def _check(place: str, tiles: int | None, old: Any, new: jax.Array) -> None:
    """Raises ValueError unless both arrays hold at least this number of tiles."""
    shapes = f"shape {tuple(old.shape)}, the optimizer {tuple(new.shape)}"
    if tiles is None or not new.ndim:
        fits = old.shape == new.shape
    else:
        fits = old.shape[1:] == new.shape[1:]
        fits &= tiles <= min(len(old), len(new)) or old.shape == new.shape
    if not fits or old.dtype != new.dtype:
        count = f" for {tiles} tiles" if tiles is not None else ""
        raise ValueError(
            f"The state does not fit the optimizer: at {place} it has {shapes}{count}, "
            f"and dtype {old.dtype} against {new.dtype}. Only the number of devices "
            "may differ: make the optimizer with the same parameters, Tiling, rule, "
            "grafting and dtypes."
        )
    idle = slice(tiles, None) if ".momentum" in place and tiles is not None else None
    if idle is not None and bool(jnp.any(old[idle] != 0)):
        raise ValueError(
            f"The state has momenta at {place} beyond the {tiles} tiles of the "
            "parameters, where idle tiles have none: it is a state of other parameters "
            "or of another Tiling."
        )
