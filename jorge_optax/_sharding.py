"""Meshes with explicit axes: tiles mix leaves, so inside they must be automatic."""

from collections.abc import Callable
from typing import Any

import jax


def in_auto_axes(function: Callable[..., Any], like: Any, *arguments: Any) -> Any:
    """Calls a function of arrays, with the axes of an explicit mesh made automatic.

    On a mesh with explicit axes every reshape and matrix product must say how its
    result is sharded, which for stacks of tiles of many leaves has no good answer:
    it is left to the compiler.

    Args:
      function: to be called.
      like: tree of arrays like the function's results; these are sharded alike.
      *arguments: trees of arrays.

    Returns:
      What the function returns.
    """
    axis_types = jax.sharding.get_abstract_mesh().axis_types
    if jax.sharding.AxisType.Explicit not in axis_types:
        return function(*arguments)
    shardings = jax.tree.map(lambda x: jax.typeof(x).sharding, like)
    return jax.sharding.auto_axes(function, out_sharding=shardings)(*arguments)
