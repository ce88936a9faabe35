"""What an optimizer is made with, its state, and one step of all tiles.

Rules and lengths are written for one tile, or for one side of it. This module runs them
on stacks of tiles.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jorge_optax._errors import as_float, check_mask
from jorge_optax._rule import Numerics, Rule, split_size
from jorge_optax._tiles import OneDevice, PyTree, Real, Stacks, Tiling
from jorge_optax.lengths import Length, graft_tile


class Sides(NamedTuple):
    """What is kept for the left and the right sides of all tiles.

    Attributes:
      left: Stack to the roots of the sides of R rows, any pytree with ``[n, ...]``.
      right: Stack to the roots of the sides of C columns.
    """

    left: dict[str, PyTree]
    right: dict[str, PyTree]


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
    what was derived, and why.
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

    @property
    def averages(self) -> bool:
        """Whether tiles keep the momentum of directions."""
        return self.momentum is not None and self.rule.momentum == "paper"

    @property
    def traces(self) -> bool:
        """Whether tiles keep the momentum of gradients."""
        measured = self.length is not None and self.length.uses_trace
        needed = measured or self.rule.momentum == "nesterov"
        return self.momentum is not None and needed


class JorgeTransformation(optax.GradientTransformationExtraArgs):
    """An optax transformation that knows what it was made with; print it.

    :func:`jorge_optax.describe`, :func:`jorge_optax.diagnostics` and
    :func:`jorge_optax.reshard_state` take it.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        """Returns a table of the options, with notes below it."""
        settings = settings_of(self)
        if settings is None:
            return super().__repr__()
        early = settings.rule.early_refreshes
        entries = {
            "learning_rate": settings.learning_rate,
            "momentum": settings.momentum,
            "weight_decay": settings.weight_decay,
            "rule": settings.rule,
            "grafting": settings.length,
            "update_interval": option_text(settings.update_interval)
            + f", and 1 in the first {early} steps" * (early > 0),
            "tiling": settings.tiling,
            "numerics": settings.numerics,
            "others": "an optimizer of their own" if settings.others else None,
            "sharding": settings.layout if settings.layout.devices > 1 else None,
        }
        texts = {
            key: option_text(own) for key, own in entries.items() if own is not None
        }
        for default in ("Tiling()", "Numerics()"):
            texts = {name: text for name, text in texts.items() if text != default}
        width = max(map(len, texts))
        lines = [f"{name:<{width}}  {text}" for name, text in texts.items()]
        return "\n".join([*lines, *(f"note: {note}" for note in settings.notes)])


def option_text(option: Any) -> str:
    """Writes an option: a dataclass without its defaults, a schedule by its values."""
    if dataclasses.is_dataclass(option):
        shown = [field for field in dataclasses.fields(option) if field.repr]
        values = [(field, vars(option)[field.name]) for field in shown]
        # Values may be traced, and are compared only with values of the same type.
        changed = (
            f"{field.name}={own!r}"
            for field, own in values
            if type(own) is not type(field.default) or own != field.default
        )
        return f"{type(option).__name__}({', '.join(changed)})"
    if callable(option):
        steps = (0, 1000, 10_000)
        schedule: Any = option
        texts = (f"{float(schedule(jnp.int32(n))):.3g} at {n}" for n in steps)
        return f"a schedule: {', '.join(texts)}"
    return str(option)


def settings_of(tx: object) -> Settings | None:
    """Returns what our own transformation was made with; None for others."""
    # On the function, so that the transformation remains a tuple of two functions.
    if isinstance(tx, JorgeTransformation) and callable(tx.update):
        return vars(tx.update).get("settings")
    return None


def required_settings(name: str, tx: object) -> Settings:
    """Returns the settings; raises TypeError for what is not our transformation."""
    settings = settings_of(tx)
    if settings is None:
        raise TypeError(
            f"{name} takes the transformation that jorge, scale_by_jorge or one of the "
            "recipes such as from_sgd returned, not one around it (optax.chain, "
            f"optax.MultiSteps, optax.inject_hyperparams) or another; got {tx!r}."
        )
    return settings


def with_notes(tx: Any, *notes: str) -> Any:
    """Adds to our own transformation what was derived for it, and why."""
    settings = required_settings("with_notes", tx)
    vars(tx.update)["settings"] = settings._replace(notes=notes)
    return tx


def start_tiles(
    settings: Settings, stacks: Stacks, real: dict[str, Real]
) -> JorgeState:
    """Starts the state of all tiles, from stacks of zeros."""
    count = jnp.zeros([], jnp.int32)
    if not stacks:
        # A scalar is a valid prefix of any dict of stacks, which
        # optax.tree.map_params asks of `init` on a tree without leaves.
        left, right, *kept = (jnp.zeros([]) for _ in range(6))
        return JorgeState(count, Sides(left, right), *kept)  # pyright: ignore
    rule, numerics, length = settings.rule, settings.numerics, settings.length
    dtype = numerics.rounding().dtype
    wide = jnp.promote_types(dtype, jnp.float32)
    init = functools.partial(rule.init, dtype=dtype)
    left, right = (
        {
            key: jax.vmap(init)(masks(own.shape[1 + i], real[key][i], wide))
            for key, own in stacks.items()
        }
        for i in range(2)
    )

    def momenta(tile: jax.Array) -> jax.Array:
        return jnp.zeros_like(tile, numerics.momenta)

    def nothing(tile: jax.Array) -> tuple[()]:
        del tile
        return ()

    return JorgeState(
        count=count,
        roots=Sides(left, right),  # line 1
        average=each(momenta if settings.averages else nothing, stacks),
        trace=each(momenta if settings.traces else nothing, stacks),
        length=each(nothing if length is None else length.init, stacks),
        adapted=each(rule.adapt_init, stacks),
    )


def step_tiles(
    settings: Settings, gradients: Stacks, state: JorgeState, real: dict[str, Real]
) -> tuple[Stacks, JorgeState]:
    """Steps all tiles: lines 4 to 14 of Algorithm 2, and A.2."""
    rule, length = settings.rule, settings.length
    b1 = 0.0 if settings.momentum is None else settings.momentum
    count = jnp.asarray(optax.safe_increment(state.count))
    roots = refresh_if_due(settings, gradients, state, real)  # lines 5 to 8
    trace, average, of_length = state.trace, state.average, state.length
    matrices = gradients
    if settings.traces:
        trace = {key: own + b1 * trace[key] for key, own in gradients.items()}  # A.2
    if settings.traces and rule.momentum == "nesterov":
        matrices = {
            key: (1 - b1) * (own + b1 * trace[key]) for key, own in gradients.items()
        }
    of_products = settings.numerics.apply or rule.precision
    with jax.named_scope("jorge/step"), precision(of_products):
        left, right = (cast_like(side, matrices) for side in roots)
        steps = each(rule.precondition, left, right, matrices)  # line 11
    adapt = functools.partial(rule.adapt, count=count)
    steps, adapted = by_field(each(adapt, state.adapted, steps))
    if settings.averages:  # line 14
        average = steps = {
            key: b1 * average[key] + (1 - b1) * own for key, own in steps.items()
        }
    if length is not None:  # A.2: |s| m / |m|
        summed = trace if settings.traces else gradients
        graft = functools.partial(graft_tile, length, b1, count)
        pairs = each(graft, of_length, steps, gradients, summed, real)
        steps, of_length = by_field(pairs)
    return steps, JorgeState(count, roots, average, trace, of_length, adapted)


def then_decay_and_rate(
    step: optax.GradientTransformation, settings: Settings
) -> optax.GradientTransformation:
    """Adds decoupled decay, and multiplies by the rate (line 15, and A.2)."""
    rate = optax.scale_by_learning_rate(as_float(settings.learning_rate))
    decay = decayed(settings.weight_decay, settings.weight_decay_mask)
    if settings.others is None:
        return optax.chain(step, decay, rate)

    # Parameters without roots have a complete optimizer of their own.
    def rooted(tree: PyTree) -> PyTree:
        plan = settings.layout.plan(tree, settings.tiling)
        structure = jax.tree.structure(tree)
        return structure.unflatten([own.grid is not None for own in plan.leaves])

    return optax.chain(step, optax.masked(optax.chain(decay, rate), rooted))


def decayed(decay: float | jax.Array, mask: Any) -> optax.GradientTransformation:
    """Returns decoupled decay, which needs the parameters only if it is not 0."""
    decay = as_float(decay)
    if isinstance(decay, float) and decay == 0:
        return optax.identity()
    inner = optax.add_decayed_weights(decay, mask)

    def init_fn(params):
        if callable(mask):
            check_mask(mask(params), alone=True)
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


def refresh_if_due(
    settings: Settings, gradients: Stacks, state: JorgeState, real: dict[str, Real]
) -> Sides:
    """Refreshes the roots at steps 0, k, 2k, ..., and at the first ones of the rule."""
    interval: Any = settings.update_interval
    interval = interval(state.count) if callable(interval) else interval
    # Schedules return floats, in which a large count would lose its last digits.
    interval = jnp.maximum(jnp.round(jnp.asarray(interval)).astype(jnp.int32), 1)
    early = settings.rule.early_refreshes
    due = (state.count % interval == 0) | (state.count < early)
    refresh = functools.partial(refresh_roots, settings, real)
    return jax.lax.cond(due, refresh, keep_in_place, state.roots, gradients)


def refresh_roots(
    settings: Settings, real: dict[str, Real], roots: Sides, gradients: Stacks
) -> Sides:
    """Lines 5 to 8, for all tiles; those whose gradient is not usable keep their roots.

    Not usable is a gradient that is zero, subnormal or not finite.
    """
    rule, numerics = settings.rule, settings.numerics
    rounding = numerics.rounding()
    wide = jnp.promote_types(rounding.dtype, jnp.float32)
    with jax.named_scope("jorge/refresh_roots"), precision(numerics.refresh):
        gradients = {key: own.astype(wide) for key, own in gradients.items()}
        units, sizes, usable = by_field(each(split_size, gradients))
        units = {
            key: jnp.where(usable[key][:, None, None], own, 1)
            for key, own in units.items()
        }
        left, right = (cast_like(side, units) for side in roots)
        seen = each(rule.observe, left, right, units, sizes)
        sides = [
            (root[key], seen[key][i], masks(own.shape[1 + i], real[key][i], wide))
            for i, root in enumerate((left, right))
            for key, own in units.items()
        ]
        new = iter(by_length(functools.partial(rule.refresh, rounding=rounding), sides))
    kept = (
        {
            key: jax.tree.map(functools.partial(choose, own), next(new), root[key])
            for key, own in usable.items()
        }
        for root in roots
    )
    return Sides(*kept)


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


def by_length(
    function: Callable[..., PyTree], sides: Sequence[tuple[PyTree, ...]]
) -> list[PyTree]:
    """Applies a function of one side to stacks of sides, equal lengths in one vmap.

    Args:
      function: Takes the arguments of one side.
      sides: For each stack of sides the arguments, ``[n, ...]``.

    Returns:
      For each stack of sides the results, ``[n, ...]``.
    """
    groups: dict[Any, list[int]] = {}
    for i, side in enumerate(sides):
        key = tuple(x.shape[1:] for x in jax.tree.leaves(side))
        groups.setdefault(key, []).append(i)
    joined = [
        jax.tree.map(lambda *x: jnp.concatenate(x), *(sides[i] for i in group))
        for group in groups.values()
    ]
    mapped = [jax.vmap(function)(*own) for own in joined]
    results: dict[int, PyTree] = {}
    for group, result in zip(groups.values(), mapped, strict=True):
        ends = np.cumsum([len(jax.tree.leaves(sides[i])[0]) for i in group])
        for i, start, end in zip(group, [0, *ends], ends, strict=False):
            results[i] = jax.tree.map(lambda x, s=start, e=end: x[s:e], result)
    return [results[i] for i in range(len(sides))]


def each(function: Callable[..., PyTree], *stacks: dict[str, Any]) -> dict[str, PyTree]:
    """Applies a function of one tile to the tiles of each stack."""
    return {
        key: jax.vmap(function)(*(own[key] for own in stacks)) for key in stacks[-1]
    }


def by_field(results: dict[str, tuple[PyTree, ...]]) -> list[dict[str, PyTree]]:
    """Turns a dict of tuples into a list of dicts, one for each field."""
    fields = zip(*results.values(), strict=True)
    return [dict(zip(results, field, strict=True)) for field in fields]


def masks(length: int, real: jax.Array | np.ndarray, dtype: Any) -> jax.Array:
    """Returns ``[n, length]``: of each side one for real rows, zero for padded ones."""
    return (jnp.arange(length)[None] < jnp.asarray(real)[:, None]).astype(dtype)


def cast_like(roots: dict[str, PyTree], like: Stacks) -> dict[str, PyTree]:
    """Casts the roots of each stack to the dtype of its tiles."""
    tree_cast = optax.tree_utils.tree_cast
    return {key: tree_cast(own, like[key].dtype) for key, own in roots.items()}


def choose(usable: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Returns ``[n, ...]`` of new roots, and of old ones where a tile is not usable."""
    usable = usable.reshape(-1, *[1] * (old.ndim - 1))
    return jnp.where(usable, new.astype(old.dtype), old)


def precision(name: str) -> Any:
    """Makes ``@`` compute in a precision, inside a ``with``."""
    return jax.default_matmul_precision(jax.lax.Precision(name).name.lower())
