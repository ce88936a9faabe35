"""Lengths of the step: what gives each tile's step its norm (grafting).

A length is passed to :func:`jorge_optax.jorge` as ``grafting``. The step of a tile has
the direction of the rule and the norm of what the length computes; parameters without
roots take the length's own step. Each length is written for one tile.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jorge_optax._errors import as_float, check_below_one, check_positive
from jorge_optax._rule import split_size
from jorge_optax._tiles import PyTree

__all__ = ("SGD", "Adam", "Length", "Shape")


class Tile(NamedTuple):
    """What a length may measure of a tile.

    Attributes:
      gradient: ``[R, C]``.
      trace: ``[R, C]``, the sum ``s = g + momentum * s`` of the gradients, this one
        included; the gradient where that is not kept.
      entries: Number of real entries, the others being padding.
      momentum: The decay rate of the trace.
      count: Number of this step, from 1.
    """

    gradient: jax.Array
    trace: jax.Array
    entries: jax.Array
    momentum: float | jax.Array
    count: jax.Array


class Length:
    """What gives each tile's step its norm.

    Attributes:
      uses_trace: Whether :meth:`measure` uses the momentum of the gradients.
    """

    uses_trace: ClassVar[bool] = True

    def transformation(
        self, momentum: float | jax.Array, momenta_dtype: np.dtype | None
    ) -> optax.GradientTransformation:
        """Returns the optimizer of unit learning rate whose steps are measured."""
        raise NotImplementedError

    def init(self, tile: jax.Array) -> PyTree:
        """Returns what :meth:`measure` keeps for a tile of this shape and dtype."""
        del tile
        return ()

    def measure(self, state: PyTree, tile: Tile) -> tuple[jax.Array, PyTree]:
        """Computes the step of a tile whose norm is taken, and the new state.

        Of the step only the norm counts, unless the direction of the rule is zero or
        not finite: then the step itself is taken.
        """
        raise NotImplementedError

    def factor(self, rows: int, columns: int) -> float | jax.Array:
        """Returns what the step of a whole matrix of this shape is multiplied by."""
        del rows, columns
        return 1.0


@dataclasses.dataclass(frozen=True)
class SGD(Length):
    """The length of the step of SGD with momentum; ``grafting="sgd"``.

    Attributes:
      scale: The steps of matrices are so many times as long as SGD's. A step that is
        whitened is spread over all directions alike, where SGD's goes along the
        steepest few, so that 2 is worth a try with :class:`jorge_optax.Whitening`.

    Examples:
      >>> from jorge_optax import jorge, lengths
      >>> optimizer = jorge(0.1, grafting=lengths.SGD())  # the default
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        """Checks the option."""
        check_positive("lengths.SGD.scale", self.scale)

    def transformation(
        self, momentum: float | jax.Array, momenta_dtype: np.dtype | None
    ) -> optax.GradientTransformation:
        """Returns SGD's momentum."""
        return optax.trace(momentum, accumulator_dtype=momenta_dtype)

    def measure(self, state: PyTree, tile: Tile) -> tuple[jax.Array, PyTree]:
        """Returns the momentum."""
        return tile.trace, state

    def factor(self, rows: int, columns: int) -> float | jax.Array:
        """Returns the scale."""
        del rows, columns
        return self.scale


@dataclasses.dataclass(frozen=True)
class Adam(Length):
    """The length of Adam's step, whose ``b1`` is the momentum.

    Attributes:
      b2: Decay rate of the second moment.
      eps: Added to the root of the second moment.
      scale: The steps of matrices are so many times as long as Adam's, as for
        :class:`SGD`.

    Examples:
      >>> from jorge_optax import jorge, lengths
      >>> optimizer = jorge(3e-4, grafting=lengths.Adam(b2=0.95))
    """

    b2: float | jax.Array = 0.999
    eps: float | jax.Array = 1e-8
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Checks the options."""
        check_below_one("lengths.Adam.b2", self.b2)
        check_positive("lengths.Adam.eps", self.eps)
        check_positive("lengths.Adam.scale", self.scale)

    def transformation(
        self, momentum: float | jax.Array, momenta_dtype: np.dtype | None
    ) -> optax.GradientTransformation:
        """Returns Adam with unit learning rate."""
        eps: Any = as_float(self.eps)
        return optax.scale_by_adam(
            momentum,  # pyright: ignore[reportArgumentType]
            self.b2,  # pyright: ignore[reportArgumentType]
            eps,
            mu_dtype=momenta_dtype,
        )

    def init(self, tile: jax.Array) -> jax.Array:
        """Returns a second moment of zero."""
        return jnp.zeros_like(tile)

    def measure(self, state: PyTree, tile: Tile) -> tuple[jax.Array, PyTree]:
        """Returns Adam's step, with the second moment as state."""
        b1, count, gradient = tile.momentum, tile.count, tile.gradient
        state = self.b2 * state + (1 - self.b2) * jnp.square(gradient)
        first = (1 - b1) / (1 - b1**count)
        second = state / (1 - self.b2**count)
        tiny = jnp.finfo(state.dtype).tiny  # finite derivatives at zero
        step = first * tile.trace / (jnp.sqrt(jnp.maximum(second, tiny)) + as_float(self.eps))
        return step.astype(gradient.dtype), state.astype(gradient.dtype)

    def factor(self, rows: int, columns: int) -> float | jax.Array:
        """Returns the scale."""
        del rows, columns
        return self.scale


@dataclasses.dataclass(frozen=True)
class Shape(Length):
    """A length by shape alone: a root mean square of one over the root of the rows.

    The rows of a parameter's matrix are its inputs, so each step changes the outputs of
    a layer by about the learning rate, whatever the gradients' size. Such steps do not
    shrink with the gradient: the learning rate must decay to zero.

    Attributes:
      others: Parameters without roots take Adam's step times this number.
      b2: Decay rate of the second moment of that Adam.

    Examples:
      >>> import optax
      >>> from jorge_optax import Whitening, jorge, lengths
      >>> schedule = optax.cosine_decay_schedule(0.0425, 9000)
      >>> optimizer = jorge(schedule, rule=Whitening(), grafting=lengths.Shape())
    """

    others: float = 0.1
    b2: float | jax.Array = 0.95
    uses_trace: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Checks the options."""
        check_positive("lengths.Shape.others", self.others)
        check_below_one("lengths.Shape.b2", self.b2)

    def transformation(
        self, momentum: float | jax.Array, momenta_dtype: np.dtype | None
    ) -> optax.GradientTransformation:
        """Returns Adam, for parameters without roots."""
        adam = Adam(self.b2).transformation(momentum, momenta_dtype)
        return optax.chain(adam, optax.scale(as_float(self.others)))

    def measure(self, state: PyTree, tile: Tile) -> tuple[jax.Array, PyTree]:
        """Returns the momentum at a root mean square of one; ``factor`` does the rest.

        A tile whose momentum is zero has no step.
        """
        unit, _, _ = split_size(tile.trace)
        square = jnp.maximum(jnp.sum(jnp.square(unit)), jnp.finfo(unit.dtype).tiny)
        return unit * (jnp.sqrt(tile.entries) / jnp.sqrt(square)), state

    def factor(self, rows: int, columns: int) -> float | jax.Array:
        """Returns the root mean square of the steps of a matrix."""
        del columns
        return rows**-0.5


def graft_tile(
    length: Length, state: PyTree, direction: jax.Array, *tile: Any, **options: Any
) -> tuple[jax.Array, PyTree]:
    """Gives a direction the length of a step (A.2 of the paper)."""
    step, state = length.measure(state, Tile(*tile, **options))
    return rescale(step, direction), state


def rescale(step: jax.Array, direction: jax.Array) -> jax.Array:
    """Returns the direction at the norm of a step.

    Norms are those of arrays divided by their largest entries, so that they neither
    overflow nor underflow.

    Args:
      step: Array whose norm counts.
      direction: Array whose direction counts.

    Returns:
      The grafted step; the step itself where the direction is zero or not finite.
      Entries are cut off at the largest number of the dtype.
    """
    # Behind a barrier: XLA would rewrite (a / b) / size as a / (b * size), where the
    # product may underflow.
    step, direction = jax.lax.optimization_barrier((step, direction))
    tiny, most = jnp.finfo(step.dtype).tiny, jnp.finfo(step.dtype).max
    # Constants to differentiation, which what is divided by them does not depend on.
    size = jax.lax.stop_gradient(jnp.max(jnp.abs(step)))
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(direction)))
    own = step / jnp.maximum(size, tiny)
    unit = direction / jnp.maximum(largest, tiny)
    squares = jnp.stack([jnp.sum(jnp.square(own)), jnp.sum(jnp.square(unit))])
    length, norm = jnp.sqrt(jnp.maximum(squares, tiny))
    usable = (largest >= tiny) & jnp.isfinite(largest)
    grafted = jnp.where(usable, unit * (length / norm), own)
    return jnp.clip(grafted * jnp.maximum(size, tiny), -most, most)


class GraftState(NamedTuple):
    """The states of the two grafted transformations."""

    magnitude: PyTree
    direction: PyTree


def graft(
    magnitude: optax.GradientTransformation, direction: optax.GradientTransformation
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
    for name, tx in (("magnitude", magnitude), ("direction", direction)):
        if not isinstance(tx, optax.GradientTransformation):
            raise TypeError(
                f"graft: {name} must be an optax.GradientTransformation, got {tx!r}."
            )
    magnitude = optax.with_extra_args_support(magnitude)
    direction = optax.with_extra_args_support(direction)

    def combine(step: jax.Array, along: jax.Array) -> jax.Array:
        if not along.size:
            return along
        wide = jnp.promote_types(along.dtype, jnp.float32)
        grafted = rescale(step.astype(wide), along.astype(wide))
        # Zero stays zero, and NaN stays NaN.
        usable = split_size(along.astype(wide))[2]
        return jnp.where(usable, grafted, along).astype(along.dtype)

    def init_fn(params):
        # The direction first: its error messages are the more helpful ones.
        direction_state = direction.init(params)
        return GraftState(magnitude.init(params), direction_state)

    def update_fn(updates, state, params=None, **extra_args):
        directions, direction_state = direction.update(
            updates, state.direction, params, **extra_args
        )
        steps, magnitude_state = magnitude.update(
            updates, state.magnitude, params, **extra_args
        )
        grafted = jax.tree.map(combine, steps, directions)
        return grafted, GraftState(magnitude_state, direction_state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def length_of(grafting: str | Length | None) -> Length | None:
    """Returns the length that an option names; None for None."""
    if grafting is None or isinstance(grafting, Length):
        return grafting
    if isinstance(grafting, str) and grafting == "sgd":
        return SGD()
    known = {"adam": "Adam()", "sgd": "SGD()", "shape": "Shape()"}
    name = grafting.__name__ if isinstance(grafting, type) else str(grafting)
    meant = known.get(name.lower())
    remedy = f": write grafting=lengths.{meant}." if meant else "."
    if isinstance(grafting, optax.GradientTransformation):
        remedy = ": write graft(transformation, scale_by_jorge(momentum=0.9))."
    raise ValueError(
        "grafting must be 'sgd', a length such as jorge_optax.lengths.Adam(), or None, "
        f"got {grafting!r}{remedy}"
    )
