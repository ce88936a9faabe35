"""The step of all tiles: momentum of the directions, their length, and guards.

There are two ways to the same step. On a CPU, stacks pass one guard after another. On a
GPU every pass over a stack takes its time on the bus of the memory, and the guards need
numbers that take a pass: a product of two stacks, largest entries, norms. There, one
kernel a stack computes the momenta and all numbers, and the guards run in a
conditional, only where a number of some tile is out of range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jorge_optax._grafting import compare_norms, rescale_stacks
from jorge_optax._numerics import cut_off, hide_origin
from jorge_optax._types import PyTree, Scalar, Stacks

Guard = Callable[[Stacks, Stacks], Stacks]
"""Takes matrices and what the roots made of them; returns directions."""


class Step(NamedTuple):
    """What a step is made from, as stacks.

    Attributes:
      gradients: The gradients.
      matrices: What the roots were applied to: gradients, or a momentum of them.
      made: What the roots made of the matrices, before any guard.
      old: The momenta of the last step: of directions, or of gradients.
      new: The momenta of gradients after this step; None for momenta of directions.
      length: What the length accumulates.
    """

    gradients: Stacks
    matrices: Stacks
    made: Stacks
    old: Stacks
    new: Stacks | None
    length: PyTree


Measure = Callable[[PyTree, Stacks, Stacks], tuple[Stacks, PyTree]]
"""Takes a length's state, gradients and momenta; returns steps and the new state."""


def take_step(
    step: Step, momentum: Scalar, measure: Measure, guard: Guard | None, fast: bool
) -> tuple[Stacks, Stacks, PyTree]:
    """Grafts the length of a step onto the directions of the roots.

    Args:
      step: What it is made from.
      momentum: Decay rate of the momenta.
      measure: Computes the steps that give the length.
      guard: Replaces directions that do not descend; None does not.
      fast: Whether the length is that of ``gradients + momentum * s``, where s is the
        momentum of the last step, in ``length.trace`` or ``old``: only then is there
        a second way.

    Returns:
      The steps, the momenta and what the length accumulates.
    """

    def with_guards(step: Step) -> tuple[Stacks, Stacks, PyTree]:
        made = guard(step.matrices, step.made) if guard else step.made
        if step.new is None:
            momenta = directions = average(made, momentum, step.old)
        else:
            momenta, directions = step.new, made
        steps, length = measure(step.length, step.gradients, momenta)
        return rescale_stacks(steps, directions, else_lengths=True), momenta, length

    def in_one_pass(step: Step) -> tuple[Stacks, Stacks, PyTree]:
        return take_in_one_pass(step, momentum, measure, guard)

    if not fast or not step.made:
        return with_guards(step)
    return jax.lax.platform_dependent(step, cpu=with_guards, default=in_one_pass)


def take_in_one_pass(
    step: Step, momentum: Scalar, measure: Measure, guard: Guard | None
) -> tuple[Stacks, Stacks, PyTree]:
    """Computes what :func:`take_step` does, with few passes over the stacks.

    It differs from the other way only where a guard acts on the momentum of directions.
    The momentum of the last step is then what remains of the new one without the
    direction that was replaced, if rounding has left anything of it; and where the
    momentum is zero, it starts anew as SGD's.
    """
    averages_last = step.new is None
    momenta = step.new
    if momenta is None:
        momenta = average(step.made, momentum, step.old)
    steps, length = measure(step.length, step.gradients, momenta)
    last = step.length.trace if averages_last else step.old
    summed = _add_again(step.gradients, momentum, last)
    moved = step.made
    if averages_last:
        moved = {
            key: (1 - momentum) * made - (-momentum) * step.old[key]
            for key, made in step.made.items()
        }
    numbers = _Numbers(square=_squares(moved), length=_positive_squares(summed))
    if guard:
        product = _multiply(step.matrices, step.made)
        numbers = numbers._replace(product=product, given=_entries(step.matrices))
    if averages_last:
        numbers = _sum_stacks(numbers)
    else:
        # The momenta are there before the roots are applied.
        early = _sum_stacks(_Numbers(length=numbers.length))
        late = _sum_stacks(numbers._replace(length=None))
        numbers = late._replace(length=early.length)
    zero = numbers.length == 0
    descends = jnp.ones_like(zero)
    if guard:
        descends = jnp.isfinite(numbers.product) & (numbers.product > 0)
        descends |= numbers.given == 0
    usual = _is_usual(numbers.square) & _is_usual(numbers.length)
    usual |= zero & jnp.isfinite(numbers.square)

    def keep(arrays: Stacks, matrices: Stacks, steps: Stacks):
        del matrices, steps
        ratio = jnp.sqrt(numbers.length) / jnp.sqrt(jnp.where(zero, 1, numbers.square))
        one = jnp.ones_like(ratio)
        return arrays, jnp.stack([one, jnp.where(zero, 0, ratio), one])

    def repair(arrays: Stacks, matrices: Stacks, steps: Stacks):
        if guard:
            directions = guard(matrices, step.made)
            if averages_last:
                arrays = _replace(
                    arrays, step.made, directions, momentum, _split(descends, arrays)
                )
            else:
                arrays = directions
        return _repair_lengths(steps, arrays)

    arrays = momenta if averages_last else step.made
    arrays, factors = jax.lax.cond(
        jnp.all(usual & descends), keep, repair, arrays, step.matrices, steps
    )
    momenta = arrays if averages_last else momenta
    grafted = {}
    for (key, x), own in zip(arrays.items(), _split(factors, arrays), strict=True):
        inverse, ratio, scale = own[:, :, None, None]
        # The power of two last: the product of both factors might not be finite.
        grafted[key] = cut_off(x * inverse * ratio * scale)
    return grafted, momenta, length


def _replace(
    momenta: Stacks,
    made: Stacks,
    directions: Stacks,
    momentum: Scalar,
    descends: list[jax.Array],
) -> Stacks:
    """Replaces what the roots made, in momenta of it, by directions."""
    replaced = {}
    for (key, x), good in zip(momenta.items(), descends, strict=True):
        rest = x - (1 - momentum) * made[key]
        # Else only rounding errors are left, or nothing that is finite.
        rest = jnp.where(jnp.abs(rest) > 2.0**-12 * jnp.abs(x), rest, 0)
        anew = (1 - momentum) * directions[key] + rest
        replaced[key] = jnp.where(good[:, None, None], x, anew)
    return replaced


def _repair_lengths(steps: Stacks, arrays: Stacks) -> tuple[Stacks, jax.Array]:
    """Puts steps in place of what has no direction; returns three numbers a tile."""
    split, ratio, given = compare_norms(steps, arrays)
    scales = [jnp.concatenate([scale for _, scale in side]) for side in split]
    numbers = jnp.stack([1 / scales[0], ratio, scales[1]])
    arrays = {
        key: jnp.where(own[:, None, None], x, cut_off(steps[key]))
        for (key, x), own in zip(arrays.items(), _split(given, arrays), strict=True)
    }
    return arrays, jnp.where(given, numbers, 1)


def add_again(gradients: Stacks, momentum: Scalar, old: Stacks, new: Stacks) -> Stacks:
    """Returns ``new``, the sums ``gradients + momentum * old``, for further use.

    On a GPU they are computed once more, in other words. What XLA finds written in
    other words it computes from its sources, in the kernel that reads these for the
    sums themselves; and sums that are read again take a further kernel.
    """
    return jax.lax.platform_dependent(
        gradients,
        old,
        new,
        cpu=lambda gradients, old, new: new,
        default=lambda gradients, old, new: _add_again(gradients, momentum, old),
    )


def _add_again(gradients: Stacks, momentum: Scalar, old: Stacks) -> Stacks:
    return {key: g - (-momentum) * old[key] for key, g in gradients.items()}


def average(made: Stacks, momentum: Scalar, old: Stacks) -> Stacks:
    """Returns the momentum of directions after a step (line 14)."""
    return jax.tree.map(lambda d, m: (1 - momentum) * d + momentum * m, made, old)


class _Numbers(NamedTuple):
    """What decides whether a tile is usual: stacks, or their sums over each tile.

    Attributes:
      square: Squares of the directions.
      length: Squares of the momenta that give the length, zero only for zero.
      product: Products of matrices with what the roots made of them.
      given: One for each entry of the matrices that is not zero.
    """

    square: PyTree = None
    length: PyTree = None
    product: PyTree = None
    given: PyTree = None


def _multiply(one: Stacks, other: Stacks) -> Stacks:
    return {key: x * other[key] for key, x in one.items()}


def _squares(stacks: Stacks) -> Stacks:
    return _multiply(stacks, stacks)


def _positive_squares(stacks: Stacks) -> Stacks:
    """Squares entries; the square of one that is not zero is not lost.

    What is added for it, in float32 2^-126, is beyond the digits of any usual sum.
    """
    return {
        key: jnp.where(x != 0, jnp.maximum(x * x, jnp.finfo(x.dtype).tiny), 0)
        for key, x in stacks.items()
    }


def _entries(stacks: Stacks) -> Stacks:
    return {key: (x != 0).astype(x.dtype) for key, x in stacks.items()}


def _sum_stacks(numbers: _Numbers) -> _Numbers:
    """Sums the tiles of all stacks: ``[n]`` for each of the numbers that is given."""
    given = {name: x for name, x in numbers._asdict().items() if x is not None}
    keys = next(iter(given.values()))
    sums = [_sum_all(*(stacks[key] for stacks in given.values())) for key in keys]
    joined = (jnp.concatenate(own) for own in zip(*sums, strict=True))
    return _Numbers(**dict(zip(given, joined, strict=True)))


@jax.custom_jvp
def _sum_all(*stacks: jax.Array) -> tuple[jax.Array, ...]:
    """Sums each tile of several stacks ``[n, R, C]``, in one reduction.

    XLA writes the result of a kernel over one of its operands only where that operand
    is in no second reduction. And in a sum of squares alone rows come first: of small
    tiles it would else write the squares out before it sums them.
    """
    zeros = [jnp.zeros([], x.dtype) for x in stacks]
    if len(stacks) == 1:
        return (jnp.sum(hide_origin(jnp.sum(stacks[0], 2)), 1),)

    def add(one: tuple, other: tuple) -> tuple:
        return tuple(a + b for a, b in zip(one, other, strict=True))

    return tuple(jax.lax.reduce(stacks, tuple(zeros), add, (1, 2)))


@_sum_all.defjvp
def _sum_all_jvp(primals: tuple, tangents: tuple) -> tuple[tuple, tuple]:
    return _sum_all(*primals), tuple(jnp.sum(x, (1, 2)) for x in tangents)


def _is_usual(square: jax.Array) -> jax.Array:
    """Returns whether a sum of squares has neither overflowed nor lost what counts.

    In float32, between 2^-70 and 2^100: squares that are lost are below 2^-126.
    """
    exponent = jnp.finfo(square.dtype).maxexp
    least, most = 2.0 ** (-35 * exponent // 64), 2.0 ** (50 * exponent // 64)
    return (square > least) & (square < most)


def _split(numbers: jax.Array, stacks: Stacks) -> list[jax.Array]:
    """Splits numbers ``[..., n]`` of the tiles of all stacks by stack."""
    cuts = np.cumsum([len(x) for x in stacks.values()])[:-1]
    return jnp.split(numbers, cuts, axis=-1)
