"""The state, and one step of all tiles: Algorithm 2 from its line 4 on, and A.2."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jorge_optax._errors import as_float, check_booleans, is_zero
from jorge_optax._rule import (
    Numerics,
    Rule,
    Sides,
    apply_roots,
    refresh_roots,
    start_roots,
)
from jorge_optax._tiles import OneDevice, PyTree, Real, Stacks, Tiling
from jorge_optax.lengths import Length, graft_tile


class JorgeState(NamedTuple):
    """State of :func:`jorge_optax.scale_by_jorge`.

    A stack holds the tiles of one shape of all parameters, and is named by that shape,
    ``"RxC"``. Each field is a dict by stack, with ``()`` for what is not kept. Where no
    parameter has roots, a scalar takes the place of each dict.

    Attributes:
      count: Number of updates so far, int32, shape ``[]``.
      roots: The roots of the left and of the right sides of the tiles.
      average: The momentum of directions ``[n, R, C]``, in the paper's order.
      trace: The momentum of gradients ``[n, R, C]``, as SGD's.
      length: What the length of the step keeps.
      adapted: What :meth:`Rule.adapt` keeps.
      others: State of the optimizer of parameters without roots.
    """

    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    roots: Sides
    average: PyTree
    trace: PyTree
    length: PyTree
    adapted: PyTree
    others: PyTree = ()


class Settings(NamedTuple):
    """What an optimizer was made with, checked.

    A tuple, so that tools which see functions as pytrees find the numbers in it.
    ``learning_rate`` is ``None`` for :func:`jorge_optax.scale_by_jorge`; ``notes`` say
    what was derived, and why; ``averages`` and ``traces`` whether tiles keep the
    momentum of directions and of gradients.
    """

    rule: Rule
    momentum: float | jax.Array | None
    length: Length | None
    update_interval: optax.ScalarOrSchedule
    tiling: Tiling
    numerics: Numerics
    layout: OneDevice
    learning_rate: optax.ScalarOrSchedule | None = None
    weight_decay: float | jax.Array = 0.0
    weight_decay_mask: Any = None
    others: optax.GradientTransformation | None = None
    notes: tuple[str, ...] = ()
    averages: bool = False
    traces: bool = False


def step_tiles(
    settings: Settings, gradients: Stacks, state: JorgeState, real: dict[str, Real]
) -> tuple[Stacks, JorgeState]:
    """Steps all tiles: lines 4 to 14 of Algorithm 2, and A.2."""
    rule, length = settings.rule, settings.length
    b1 = 0.0 if settings.momentum is None else settings.momentum
    count = jnp.asarray(optax.safe_increment(state.count))
    roots = refresh_if_due(settings, gradients, state, real)  # lines 5 to 8
    trace, average, kept = state.trace, state.average, state.length
    if settings.traces:  # A.2
        trace = {key: own + b1 * trace[key] for key, own in gradients.items()}
    matrices = gradients
    if settings.momentum is not None and rule.momentum == "nesterov":
        matrices = {
            key: (1 - b1) * (own + b1 * trace[key]) for key, own in gradients.items()
        }
    with (
        jax.named_scope("jorge/step"),
        precision(settings.numerics.apply or rule.precision),
    ):
        steps, adapted = apply_roots(
            rule, roots, matrices, state.adapted, count
        )  # line 11
    if settings.averages:  # line 14
        average = steps = {
            key: b1 * average[key] + (1 - b1) * own for key, own in steps.items()
        }
    if length is not None:  # A.2: |s| m / |m|
        traced = trace if settings.traces else gradients
        graft = functools.partial(graft_tile, length, momentum=b1, count=count)
        pairs = {
            key: jax.vmap(graft)(
                kept[key],
                own,
                gradients[key],
                traced[key],
                jnp.asarray(real[key].rows * real[key].columns),
            )
            for key, own in steps.items()
        }
        steps = {key: step for key, (step, _) in pairs.items()}
        kept = {key: own for key, (_, own) in pairs.items()}
    return steps, JorgeState(count, roots, average, trace, kept, adapted)


def then_decay_and_rate(
    step: optax.GradientTransformation, settings: Settings
) -> optax.GradientTransformation:
    """Adds decoupled decay, and multiplies by the rate (line 15)."""
    rate = optax.scale_by_learning_rate(as_float(settings.learning_rate))
    decay, mask = settings.weight_decay, settings.weight_decay_mask
    if settings.others is None:
        return optax.chain(step, decayed(decay, mask), rate)

    # Parameters without roots have a complete optimizer of their own.
    def rooted(tree: PyTree) -> PyTree:
        leaves = (
            own.grid is not None
            for own in settings.layout.plan(tree, settings.tiling).leaves
        )
        return jax.tree.structure(tree).unflatten(leaves)

    def decays(tree: PyTree) -> PyTree:
        chosen = mask(tree) if callable(mask) else mask
        if chosen is None or isinstance(chosen, bool | np.bool_):
            return jax.tree.map(lambda own: own and chosen is not False, rooted(tree))
        return jax.tree.map(lambda own, one: own and bool(one), rooted(tree), chosen)

    return optax.chain(step, decayed(decay, decays), optax.masked(rate, rooted))


def decayed(decay: float | jax.Array, mask: Any) -> optax.GradientTransformation:
    """Returns decoupled decay, which needs the parameters only if it is not 0."""
    if is_zero(decay):
        return optax.identity()
    inner = optax.add_decayed_weights(as_float(decay), mask)

    def init_fn(params):
        if callable(mask):
            check_booleans(mask(params), alone=True)
        try:
            return inner.init(params)
        except ValueError as error:
            raise ValueError(
                "weight_decay_mask must be a tree of booleans like the parameters, or "
                "a function of the parameters that returns one. Its tree differs from "
                f"theirs: {error}"
            ) from error

    def update_fn(updates, state, params=None):
        if params is None:
            raise ValueError(
                f"jorge with weight_decay={decay} needs the parameters (unless it is "
                "the Python number 0): call update(grads, state, params)."
            )
        return inner.update(updates, state, params)

    return optax.GradientTransformation(init_fn, update_fn)


def start_tiles(
    settings: Settings, stacks: Stacks, real: dict[str, Real]
) -> JorgeState:
    """Starts the state of all tiles, from stacks of zeros."""
    length, dtype = settings.length, settings.numerics.rounding().dtype
    count = jnp.zeros([], jnp.int32)
    if not stacks:
        # A scalar is a valid prefix of any dict of stacks, which
        # optax.tree.map_params asks of `init` on a tree without leaves.
        left, right, *others = (jnp.zeros([], dtype) for _ in range(6))
        return JorgeState(count, Sides(left, right), *others)

    def start(init: Callable[[jax.Array], PyTree]) -> dict[str, PyTree]:
        return {key: jax.vmap(init)(own) for key, own in stacks.items()}

    def momenta(tile: jax.Array) -> jax.Array:
        return jnp.zeros_like(tile, settings.numerics.momenta)

    def nothing_kept(tile: jax.Array) -> tuple[()]:
        del tile
        return ()

    return JorgeState(
        count=count,
        roots=start_roots(settings.rule, stacks, real, dtype),
        average=start(momenta if settings.averages else nothing_kept),
        trace=start(momenta if settings.traces else nothing_kept),
        length=start(length.init if length else nothing_kept),
        adapted=start(settings.rule.adapt_init),
    )


def refresh_if_due(
    settings: Settings, gradients: Stacks, state: JorgeState, real: dict[str, Real]
) -> Sides:
    """Refreshes the roots at steps 0, k, 2k, ..., and at the first ones of the rule."""
    rule, numerics = settings.rule, settings.numerics

    def refresh(roots: Sides, gradients: Stacks) -> Sides:
        with jax.named_scope("jorge/refresh_roots"), precision(numerics.refresh):
            return refresh_roots(rule, numerics.rounding(), roots, gradients, real)

    interval: Any = settings.update_interval
    interval = interval(state.count) if callable(interval) else interval
    # Schedules return floats, in which a large count would lose its last digits.
    interval = jnp.maximum(jnp.round(jnp.asarray(interval)).astype(jnp.int32), 1)
    due = (state.count % interval == 0) | (state.count < rule.early_refreshes)
    return jax.lax.cond(due, refresh, keep_in_place, state.roots, gradients)


def keep_in_place(roots: Sides, gradients: Stacks) -> Sides:
    """Returns the roots from a branch of a conditional without copying them.

    A branch that returns its operands makes XLA's GPU compiler copy them, twice, on
    every step that takes the branch. A branch that writes to them works in place (if
    they are donated): it writes the first entry of each array onto itself. On the CPU
    it is the other way round.
    """
    del gradients

    def write_first_entry(x: jax.Array) -> jax.Array:
        first = x[(slice(0, 1),) * x.ndim]
        return jax.lax.dynamic_update_slice(x, first, (0,) * x.ndim)

    write = functools.partial(jax.tree.map, write_first_entry)
    return jax.lax.platform_dependent(roots, cpu=lambda x: x, default=write)


def precision(name: str) -> Any:
    """Makes ``@`` compute in a precision, inside a ``with``."""
    return jax.default_matmul_precision(jax.lax.Precision(name).name.lower())
