"""scale_by_jorge: the paper's Algorithm 2 up to its step, on stacks of tiles."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding

from jorge_optax._checks import (
    canonical_dtype,
    canonical_precision,
    check_below_one,
    check_flag,
    check_interval,
    check_number,
    check_positive,
    check_share,
)
from jorge_optax._distributed import Spread, spread_of
from jorge_optax._execution import execute_in_float32, keep_in_place
from jorge_optax._rule import Preconditioner, Rule, check_rule
from jorge_optax._series import BinomialSeries
from jorge_optax._sides import apply_roots
from jorge_optax._staggering import number_of_slots, refresh_in_parts
from jorge_optax._steps import Guard, Step, add_again, average, take_step
from jorge_optax._tiles import on_tiles
from jorge_optax._tiling import Tiling
from jorge_optax._types import (
    Dtype,
    Precision,
    PyTree,
    Scalar,
    ScalarOrSchedule,
    Sides,
    Stacks,
)
from jorge_optax.lengths import SGD, Length


class JorgeState(NamedTuple):
    """State of :func:`scale_by_jorge`.

    A stack holds the tiles of one shape of all parameters, and is named by that shape,
    ``"RxC"``. Where no parameter has roots, a scalar takes the place of each dict.

    Attributes:
      count: Number of updates so far, int32, shape ``[]``.
      roots: Stack to its roots, left ``[n, R, R]`` and right ``[n, C, C]``.
      statistics: What the rule keeps beside the roots: no arrays for
        :class:`BinomialSeries` and :class:`Whitening`.
      momentum: Stack to its momentum ``[n, R, C]``; nothing without momentum.
      length: What the length of the step accumulates; nothing without grafting.
    """

    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    roots: dict[str, Sides]
    statistics: PyTree
    momentum: Stacks
    length: PyTree


def scale_by_jorge(
    *,
    rule: Rule | None = None,
    momentum: Scalar | None = None,
    eps: Scalar = 1e-6,
    update_interval: ScalarOrSchedule = 10,
    stagger: bool = False,
    damping: Scalar = 0.0,
    tiling: Tiling | None = None,
    root_dtype: str = "float32",
    accumulator_dtype: str | None = None,
    precision: Precision = None,
    refresh_precision: Precision = None,
    sharding: NamedSharding | Spread | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Preconditions gradients by Jorge's approximate inverse roots.

    This gives the direction only: no grafting, weight decay or learning rate. See
    :func:`jorge_optax.jorge` for the whole optimizer, the mathematics and the
    arguments. Parameters without roots get the momentum alone.

    Args:
      rule: As in :func:`jorge_optax.jorge`.
      momentum: Decay rate of the momentum; ``None`` keeps none. Whether gradients are
        averaged before or after they are preconditioned is up to the rule.
      eps: As in :func:`jorge_optax.jorge`.
      update_interval: As in :func:`jorge_optax.jorge`.
      stagger: As in :func:`jorge_optax.jorge`.
      damping: As in :func:`jorge_optax.jorge`.
      tiling: As in :func:`jorge_optax.jorge`.
      root_dtype: As in :func:`jorge_optax.jorge`.
      accumulator_dtype: As in :func:`jorge_optax.jorge`.
      precision: As in :func:`jorge_optax.jorge`.
      refresh_precision: As in :func:`jorge_optax.jorge`.
      sharding: As in :func:`jorge_optax.jorge`.

    Returns:
      An :class:`optax.GradientTransformationExtraArgs` with a :class:`JorgeState`.

    Examples:
      >>> import jax.numpy as jnp
      >>> import optax
      >>> from jorge_optax import scale_by_jorge
      >>> optimizer = optax.chain(
      ...   scale_by_jorge(update_interval=1), optax.scale_by_learning_rate(0.1)
      ... )
      >>> state = optimizer.init({"w": jnp.ones((3, 2))})
      >>> {key: roots.left.shape for key, roots in state[0].roots.items()}
      {'3x2': (1, 3, 3)}
    """
    # None and not 0 keeps none: optax.inject_hyperparams makes arrays of numbers.
    keeps_momentum = momentum is not None
    momentum = 0.0 if momentum is None else momentum
    tiles = precondition_stacks(
        rule=rule,
        momentum=momentum,
        keeps_momentum=keeps_momentum,
        eps=eps,
        update_interval=update_interval,
        stagger=stagger,
        damping=damping,
        root_dtype=root_dtype,
        accumulator_dtype=accumulator_dtype,
        precision=precision,
        refresh_precision=refresh_precision,
    )
    others = None
    if keeps_momentum:
        others = average_leaves(rule, momentum, accumulator_dtype)
    spread = spread_of(sharding)
    step = on_tiles(tiles, others, tiling=tiling, spread=spread)
    return execute_in_float32(step, spread)


def precondition_stacks(
    *,
    rule: Rule | None,
    momentum: Scalar,
    eps: Scalar,
    update_interval: ScalarOrSchedule,
    damping: Scalar,
    root_dtype: str,
    accumulator_dtype: str | None,
    precision: Precision,
    refresh_precision: Precision = None,
    stagger: bool = False,
    length: Length | None = None,
    keeps_momentum: bool = True,
) -> optax.GradientTransformationExtraArgs:
    """Returns the transformation of stacks of tiles ``{"RxC": [n, R, C]}``.

    An extra argument ``cut``, a function without arguments, cuts the gradients into
    stacks once more where they are needed.
    """
    dtype = canonical_dtype("root_dtype", root_dtype)
    _validate(momentum, eps, update_interval, damping, dtype)
    check_flag("stagger", stagger)
    chosen = _checked(rule)
    slots = number_of_slots(update_interval)
    averages_first = chosen.preconditions != "gradient"
    early_refreshes = getattr(chosen, "early_refreshes", 0)
    momentum_dtype = canonical_accumulator(accumulator_dtype)
    if refresh_precision is None:
        refresh_precision = "highest" if precision is None else precision
    if precision is None:
        precision = getattr(chosen, "precision", "highest")
    precision = canonical_precision(precision)
    refresh_precision = canonical_precision(refresh_precision, "refresh_precision")
    init_length, measure = _length_functions(
        length, averages_first, momentum, momentum_dtype
    )

    def init_fn(params: PyTree) -> JorgeState:
        tiles = params
        nothing: PyTree = jnp.zeros([], dtype)
        kept = Preconditioner(nothing, nothing)  # where a scalar stands for no stacks
        if isinstance(tiles, dict):
            kept = chosen.init(tiles, eps=eps, dtype=dtype)
        momenta: PyTree = _zeros(tiles, momentum_dtype) if keeps_momentum else ()
        count = jnp.zeros([], jnp.int32)
        return JorgeState(
            count, kept.roots, kept.statistics, momenta, init_length(tiles)
        )

    def refresh(kept: Preconditioner, gradients: Stacks, momenta: Stacks | None):
        with jax.named_scope("jorge/refresh_roots"):
            return chosen.refresh(
                kept, gradients, momenta, damping=damping, precision=refresh_precision
            )

    def keep(kept: Preconditioner, gradients: Stacks, momenta: Stacks | None):
        del gradients, momenta
        return keep_in_place(kept)

    def update_fn(
        updates: PyTree,
        state: PyTree,
        params: PyTree = None,
        *,
        cut: Callable[[], Stacks] | None = None,
    ):
        del params
        gradients, momenta = updates, state.momentum
        inputs, averaged = gradients, None
        if averages_first:
            averaged = inputs = gradients
            if keeps_momentum:
                averaged = momenta = inputs = _add(gradients, momentum, momenta)
            if keeps_momentum and chosen.preconditions == "nesterov":
                again = add_again(gradients, momentum, state.momentum, momenta)
                inputs = _add(gradients, momentum, again)

        # Lines 5 to 8.
        interval = _interval_at(state.count, update_interval)
        kept = Preconditioner(state.roots, state.statistics)
        if stagger and slots > 1:
            kept = refresh_in_parts(
                *(refresh, kept, gradients, averaged),
                count=state.count,
                interval=interval,
                slots=slots,
                known=isinstance(update_interval, numbers.Real),
                early_refreshes=early_refreshes,
            )
        else:
            due = state.count % interval == 0
            if early_refreshes:
                due |= state.count < early_refreshes
            renew = refresh
            if cut and averages_first:
                # A GPU cuts the gradients anew for a refresh: nothing else needs them
                # alone as stacks, which it would write at every step.

                def renew(
                    kept: Preconditioner, gradients: Stacks, momenta: Stacks | None
                ):
                    source = jax.lax.platform_dependent(
                        gradients, cpu=lambda own: own, default=lambda _: cut()
                    )
                    return refresh(kept, source, momenta)

            kept = jax.lax.cond(due, renew, keep, kept, gradients, averaged)
        # Line 11.
        with jax.named_scope("jorge/precondition"):
            directions, guard = _apply(chosen, kept, inputs, precision)
        count = jnp.asarray(optax.safe_increment(state.count))
        lengths = state.length
        # Lines 12 to 14.
        if measure and keeps_momentum:
            directions, momenta, lengths = take_step(
                Step(
                    gradients=gradients,
                    matrices=inputs,
                    made=directions,
                    old=state.momentum,
                    new=momenta if averages_first else None,
                    length=lengths,
                ),
                momentum,
                functools.partial(measure, momentum=momentum, count=count),
                guard,
                fast=type(length) is SGD,
            )
        else:
            directions = guard(inputs, directions) if guard else directions
            if keeps_momentum and averages_first:
                directions = jax.tree.map(lambda d: (1 - momentum) * d, directions)
            elif keeps_momentum:
                momenta = directions = average(directions, momentum, momenta)
        momenta = jax.tree.map(
            lambda new, old: new.astype(old.dtype), momenta, state.momentum
        )
        new = JorgeState(count, kept.roots, kept.statistics, momenta, lengths)
        return directions, new

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _length_functions(
    length: Length | None,
    shares_momentum: bool,
    momentum: Scalar,
    dtype: Dtype | None,
) -> tuple[Callable[..., PyTree], Callable[..., tuple[PyTree, PyTree]] | None]:
    """Returns functions that initialize and measure a length.

    The length uses the momentum of the rule if ``shares_momentum``, else its own.
    """
    if length is None:
        return (lambda tiles: ()), None
    if shares_momentum or not getattr(length, "uses_momentum", True):
        return length.init, length.measure
    own = length.transformation(momentum, dtype)
    return own.init, lambda state, gradients, *_, **__: own.update(gradients, state)


def average_leaves(
    rule: Rule | None, momentum: Scalar, accumulator_dtype: str | None
) -> optax.GradientTransformation:
    """Returns the momentum of parameters without roots, like that of the tiles."""
    dtype = canonical_accumulator(accumulator_dtype)
    preconditions = _checked(rule).preconditions
    if preconditions == "gradient":
        return optax.ema(momentum, debias=False, accumulator_dtype=dtype)
    nesterov = preconditions == "nesterov"
    return optax.chain(
        optax.trace(momentum, nesterov, dtype), optax.scale(1 - momentum)
    )


def canonical_accumulator(dtype: str | None) -> Dtype | None:
    """Validates the dtype of accumulators; None stays None."""
    return None if dtype is None else canonical_dtype("accumulator_dtype", dtype)


def _apply(
    rule: Rule, kept: Preconditioner, matrices: Stacks, precision: Precision
) -> tuple[Stacks, Guard | None]:
    """Applies the roots; returns a guard of the result if the rule has one apart."""
    guard = getattr(rule, "guard", None)
    if guard is None:
        return rule.precondition(kept, matrices, precision=precision), None
    made = apply_roots(kept.roots, matrices, precision)
    return made, functools.partial(guard, kept)


def _add(gradients: Stacks, momentum: Scalar, momenta: Stacks) -> Stacks:
    return jax.tree.map(lambda g, s: g + momentum * s, gradients, momenta)


def _zeros(tiles: PyTree, dtype: Dtype | None) -> PyTree:
    return jax.tree.map(lambda tile: jnp.zeros(tile.shape, dtype or tile.dtype), tiles)


def _interval_at(count: jax.Array, update_interval: ScalarOrSchedule) -> jax.Array:
    interval = update_interval(count) if callable(update_interval) else update_interval
    # Schedules return floats, in which a large count would lose its last digits.
    interval = jnp.round(jnp.asarray(interval)).astype(jnp.int32)
    return jnp.maximum(interval, 1)


def _checked(rule: Rule | None) -> Rule:
    return BinomialSeries() if rule is None else check_rule(rule)


def _validate(
    momentum: Scalar,
    eps: Scalar,
    update_interval: ScalarOrSchedule,
    damping: Scalar,
    dtype: Dtype,
) -> None:
    check_below_one("momentum", momentum, "A value of 0.9 is usual.")
    start = "Every root starts as eps**(-1/4) times the identity; the default is 1e-6."
    check_positive("eps", eps, start)
    limits = jnp.finfo(dtype)
    check_number(
        "eps",
        eps,
        f"must be a normal number of root_dtype {dtype}, between "
        f"{float(limits.tiny):.3g} and {float(limits.max):.3g}",
        lambda x: float(limits.tiny) <= x <= float(limits.max),
        start,
    )
    check_share("damping", damping)
    check_interval(update_interval)
