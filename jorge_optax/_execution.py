"""How an update executes: in which dtype, behind which barrier, on which mesh."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from jorge_optax._distributed import Spread, place_rest
from jorge_optax._types import Dtype, PyTree


def execute_in_float32(
    inner: optax.GradientTransformation, spread: Spread | None = None
) -> optax.GradientTransformationExtraArgs:
    """Runs a transformation in float32 at least, behind a barrier, on any mesh.

    Updates leave in the dtype of the gradients, and the state keeps its dtypes. Where
    tiles are spread over devices, all of the state is placed there.
    """
    inner = optax.with_extra_args_support(inner)

    def init_fn(params: optax.Params) -> optax.OptState:
        state = inner.init(widen(params))
        return place_rest(state, spread) if spread else state

    def update_fn(updates, state, params=None, **extra_args):
        # Parameters are there from the start, and are added to once more.
        updates, state = wait_for_all((updates, state))

        def update(updates, state, params):
            return inner.update(widen(updates), state, widen(params), **extra_args)

        results = run_in_auto_axes(update, (updates, state), updates, state, params)
        # The state, too: wide gradients would widen the momenta of narrow parameters.
        return jax.tree.map(_cast_like, results, (updates, state))

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def wait_for_all(tree: PyTree) -> PyTree:
    """Prevents XLA from interleaving the update with the backward pass.

    XLA would update a parameter as soon as its gradient is known, and so spread the
    update over as many CUDA graphs as there are convolutions. Behind this barrier the
    update is one CUDA graph.
    """
    leaves, treedef = jax.tree.flatten(tree)
    traced = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tracer)]
    if traced:
        barred = jax.lax.optimization_barrier([leaves[i] for i in traced])
        for i, leaf in zip(traced, barred, strict=True):
            leaves[i] = leaf
    return treedef.unflatten(leaves)


def run_in_auto_axes(
    function: Callable[..., PyTree], like: PyTree, *arguments: PyTree
) -> PyTree:
    """Calls a function under automatic sharding, also on a mesh with explicit axes.

    On explicit axes every reshape and matrix product must say how its result is
    sharded. A stack mixes tiles of differently sharded parameters, so that is left to
    the compiler.

    Args:
      function: The function to call.
      like: Tree of arrays whose shardings the function's results take.
      *arguments: Arguments of the function, trees of arrays.

    Returns:
      What the function returns.
    """
    axis_types = jax.sharding.get_abstract_mesh().axis_types
    if jax.sharding.AxisType.Explicit not in axis_types:
        return function(*arguments)
    shardings = jax.tree.map(lambda x: jax.typeof(x).sharding, like)
    return jax.sharding.auto_axes(function, out_sharding=shardings)(*arguments)


def widen(tree: PyTree) -> PyTree:
    """Casts floating-point leaves narrower than float32 to float32."""

    def widen_leaf(leaf):
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            return leaf
        if jnp.dtype(dtype).itemsize < 2:  # no promotion; refused when tiles are cut
            return leaf
        wide = jnp.promote_types(dtype, jnp.float32)
        if wide == dtype:
            return leaf
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, wide, sharding=leaf.sharding)
        return leaf.astype(wide)

    return jax.tree.map(widen_leaf, tree)


def canonical(dtype: Dtype) -> Dtype:
    """Returns float32 for float64 unless jax has float64 enabled."""
    return jax.dtypes.canonicalize_dtype(dtype)


def _cast_like(new: jax.Array, old: jax.Array) -> jax.Array:
    dtype = canonical(old.dtype)
    return new if new.dtype == dtype else new.astype(dtype)


def keep_in_place(tree: PyTree) -> PyTree:
    """Returns a tree from a branch of a conditional without copying it.

    A branch that returns its operands makes XLA's GPU compiler copy them, twice, on
    every step that takes the branch. A branch that writes to them works in place (if
    they are donated): it writes the first entry of each array onto itself. On the CPU
    it is the other way round.
    """

    def write_first_entry(x: jax.Array) -> jax.Array:
        if not x.size:  # a rule may keep nothing for a side
            return x
        origin = (0,) * x.ndim
        first = jax.lax.dynamic_slice(x, origin, (1,) * x.ndim)
        return jax.lax.dynamic_update_slice(x, first, origin)

    def write(tree: PyTree) -> PyTree:
        return jax.tree.map(write_first_entry, tree)

    return jax.lax.platform_dependent(tree, cpu=lambda x: x, default=write)
