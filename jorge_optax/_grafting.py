"""Grafting: the length of one optimizer's step, the direction of another's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jorge_optax._execution import run_in_auto_axes
from jorge_optax._numerics import (
    cut_off,
    hide_origin,
    safe_sqrt,
    split_scale,
    split_scales,
)
from jorge_optax._stacks import from_stacks, plan_tree, to_stacks
from jorge_optax._tiling import Tiling
from jorge_optax._types import PyTree, Stacks

Split = tuple[jax.Array, jax.Array]
"""Matrices divided by powers of two, and these."""


class GraftState(NamedTuple):
    """The states of the two grafted transformations."""

    magnitude: PyTree
    direction: PyTree


def graft(
    magnitude: optax.GradientTransformation,
    direction: optax.GradientTransformation,
    *,
    tiling: Tiling | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Combines the length of one step with the direction of another.

    For each parameter, with :math:`a` the result of ``magnitude`` and :math:`b` the
    result of ``direction``,

    .. math::

      u = \|a\|_F \, \frac{b}{\|b\|_F},

    and :math:`u = 0` where :math:`b = 0`. Only the length of :math:`a` counts, so
    ``magnitude`` may or may not flip the sign (``optax.trace(0.9)`` and
    ``optax.sgd(1.0, 0.9)`` do the same); the sign of the result is that of
    ``direction``. Give ``magnitude`` a learning rate of one and scale afterwards.

    Args:
      magnitude: Transformation that gives the length of the step.
      direction: Transformation that gives the direction of the step.
      tiling: With a :class:`~jorge_optax.Tiling`, one norm for each tile of a parameter
        rather than one for the parameter: pass it if ``direction`` is tiled by it. The
        length of the parameter's whole step is that of ``magnitude`` in either case.

    Returns:
      An :class:`optax.GradientTransformationExtraArgs`; extra arguments go to both.

    Examples:
      Adam's direction, at the length of SGD's steps:

      >>> import jax.numpy as jnp
      >>> import optax
      >>> from jorge_optax import graft
      >>> optimizer = optax.chain(
      ...   graft(optax.trace(0.9), optax.scale_by_adam()),
      ...   optax.scale_by_learning_rate(0.1),
      ... )
      >>> params = {"w": jnp.zeros((2, 2))}
      >>> grads = {"w": jnp.array([[3.0, 0.0], [0.0, 4.0]])}
      >>> updates, _ = optimizer.update(grads, optimizer.init(params), params)
      >>> print(jnp.diag(updates["w"]).round(3))
      [-0.354 -0.354]

    References:
      Agarwal et al, `Learning Rate Grafting: Transferability of Optimizer Tuning
      <https://openreview.net/forum?id=FpKgG31Z_i9>`_, 2021
    """
    if tiling is None:
        return graft_by(
            lambda lengths, directions: jax.tree.map(rescale, lengths, directions),
            magnitude,
            direction,
        )
    if not isinstance(tiling, Tiling):
        raise TypeError(f"graft: tiling must be a Tiling or None, got {tiling!r}.")
    by_tiles = functools.partial(rescale_tiles, tiling=tiling, others=rescale)
    return graft_by(
        lambda lengths, directions: run_in_auto_axes(
            by_tiles, directions, lengths, directions
        ),
        magnitude,
        direction,
    )


def graft_by(
    combine: Callable[[PyTree, PyTree], PyTree],
    magnitude: optax.GradientTransformation,
    direction: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Runs both transformations and combines their results."""
    for name, tx in (("magnitude", magnitude), ("direction", direction)):
        if not isinstance(tx, optax.GradientTransformation):
            raise TypeError(
                f"graft: {name} must be an optax.GradientTransformation, got {tx!r}."
            )
    magnitude = optax.with_extra_args_support(magnitude)
    direction = optax.with_extra_args_support(direction)

    def init_fn(params):
        # The direction first: its error messages are the more helpful ones.
        direction_state = direction.init(params)
        return GraftState(magnitude.init(params), direction_state)

    def update_fn(updates, state, params=None, **extra_args):
        directions, direction_state = direction.update(
            updates, state.direction, params, **extra_args
        )
        lengths, magnitude_state = magnitude.update(
            updates, state.magnitude, params, **extra_args
        )
        state = GraftState(magnitude_state, direction_state)
        return combine(lengths, directions), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def rescale(magnitude: jax.Array, direction: jax.Array) -> jax.Array:
    """Scales ``direction`` to the length of ``magnitude``; zero stays zero.

    Norms are computed in float32 at least and scaled by the largest entry, so that they
    neither overflow nor underflow.

    Args:
      magnitude: Array whose norm counts.
      direction: Array whose direction counts.

    Returns:
      An array of the shape and dtype of ``direction``.
    """
    # A matrix of one row, in a stack of its own.
    dtype = jnp.promote_types(direction.dtype, jnp.float32)
    rows = ({"": x.astype(dtype).reshape(1, 1, -1)} for x in (magnitude, direction))
    grafted = rescale_stacks(*rows) if direction.size else {"": direction}
    return grafted[""].reshape(direction.shape).astype(direction.dtype)


def rescale_stacks(
    lengths: Stacks, directions: Stacks, *, else_lengths: bool = False
) -> Stacks:
    """Applies :func:`rescale` to each tile of all stacks.

    Args:
      lengths: Arrays whose norms count.
      directions: Arrays whose directions count.
      else_lengths: Whether a tile whose direction is zero or not finite takes
        ``lengths`` itself, rather than zero or NaN.

    Returns:
      The directions at their lengths. Where no array of that length and direction is
      finite, entries are cut off at the largest number of the dtype.
    """
    if not directions:
        return {}
    (units, steps), ratio, given = compare_norms(lengths, directions)
    cuts = np.cumsum([len(x) for x in directions.values()])[:-1]
    numbers = zip(jnp.split(ratio, cuts), jnp.split(given, cuts), strict=True)
    grafted = {}
    for key, (unit, _), (step, scale), (factor, own) in zip(
        directions, units, steps, numbers, strict=True
    ):
        factor, own, scale = (x[:, None, None] for x in (factor, own, scale))
        unit = unit * factor
        if else_lengths:
            unit = jnp.where(own, unit, step)
        # The power of two last: the product of both factors might not be finite.
        grafted[key] = cut_off(unit * scale)
    return grafted


def compare_norms(
    lengths: Stacks, directions: Stacks
) -> tuple[tuple[list[Split], list[Split]], jax.Array, jax.Array]:
    """Compares the norms of the tiles of two dicts of stacks.

    Returns:
      The directions and the lengths, each split into units and powers of two; and of
      all tiles, ``[n]``, the ratio of the norm of the unit of the length to that of the
      direction, and whether the direction is finite and not zero.
    """
    both = [*directions.values(), *(lengths[k] for k in directions)]
    split = split_scales([hide_origin(x) for x in both])
    squares = [jnp.sum(jnp.square(jnp.abs(unit)), (1, 2)) for unit, _ in split]
    number = len(directions)
    # The numbers of all stacks at once, for the sake of fewer kernels.
    length, norm = (jnp.concatenate(x) for x in (squares[number:], squares[:number]))
    ratio = safe_sqrt(length) / jnp.where(norm == 0, 1, safe_sqrt(norm))
    given = (norm > 0) & (norm < jnp.inf)
    return (split[:number], split[number:]), ratio, given


def along(step: jax.Array, direction: jax.Array) -> jax.Array:
    """Returns ``step`` with the sign that makes its product with direction positive."""
    dtype = jnp.promote_types(direction.dtype, jnp.float32)
    if not direction.size:
        return step.astype(direction.dtype)
    unit, other = (split_scale(x.astype(dtype))[0] for x in (step, direction))
    against = jnp.sum(unit * other) < 0
    return jnp.where(against, -step, step).astype(direction.dtype)


def rescale_tiles(
    lengths: PyTree,
    directions: PyTree,
    *,
    tiling: Tiling,
    others: Callable[[jax.Array, jax.Array], jax.Array],
) -> PyTree:
    """Applies :func:`rescale_stacks` to tiles, ``others`` to other parameters."""
    leaves, treedef = jax.tree.flatten(directions)
    plan = plan_tree(directions, tiling)
    magnitudes = jax.tree.leaves(lengths)
    wide = jnp.result_type(jnp.float32, *leaves)
    grafted = rescale_stacks(
        *(
            {key: tiles.astype(wide) for key, tiles in to_stacks(plan, tree).items()}
            for tree in (magnitudes, leaves)
        )
    )
    rest = [
        leaf if leaf_plan.view else others(magnitude, leaf)
        for leaf_plan, magnitude, leaf in zip(
            plan.leaves, magnitudes, leaves, strict=True
        )
    ]
    joined = from_stacks(plan, grafted, rest)
    return treedef.unflatten(
        new.astype(leaf.dtype) for new, leaf in zip(joined, leaves, strict=True)
    )
