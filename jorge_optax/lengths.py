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

from jorge_optax._errors import (
    DECAY_RATE,
    POSITIVE,
    as_float,
    check_number,
    check_type,
)
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
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]


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

    def measure(self, state: PyTree, tile: Tile) -> tuple[jax.Array, jax.Array, PyTree]:
        """Measures a step of a tile.

        Returns:
          The norm of the step, see :func:`norm`; the step of a tile where it or the
          direction of the rule has none; and the new state.
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
        check_number("lengths.SGD.scale", self.scale, POSITIVE)

    def transformation(
        self, momentum: float | jax.Array, momenta_dtype: np.dtype | None
    ) -> optax.GradientTransformation:
        """Returns SGD's momentum."""
        return optax.trace(momentum, accumulator_dtype=momenta_dtype)

    def measure(self, state: PyTree, tile: Tile) -> tuple[jax.Array, jax.Array, PyTree]:
        """Measures the momentum."""
        return norm(tile.trace), tile.trace, state

    def factor(self, rows: int, columns: int) -> float | jax.Array:
        """Returns the scale."""
        del rows, columns
        return as_float(self.scale)


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
        check_number("lengths.Adam.b2", self.b2, DECAY_RATE)
        check_number("lengths.Adam.eps", self.eps, POSITIVE)
        check_number("lengths.Adam.scale", self.scale, POSITIVE)

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

    def measure(self, state: PyTree, tile: Tile) -> tuple[jax.Array, jax.Array, PyTree]:
        """Measures Adam's step, and keeps the second moment."""
        b1, count, gradient = tile.momentum, tile.count, tile.gradient
        state = self.b2 * state + (1 - self.b2) * jnp.square(gradient)
        first = (1 - b1) / (1 - b1**count)
        second = state / (1 - self.b2**count)
        tiny = jnp.finfo(state.dtype).tiny  # finite derivatives at zero
        size = jnp.sqrt(jnp.maximum(second, tiny)) + as_float(self.eps)
        step = (first * tile.trace / size).astype(gradient.dtype)
        return norm(step), step, state.astype(gradient.dtype)

    def factor(self, rows: int, columns: int) -> float | jax.Array:
        """Returns the scale."""
        del rows, columns
        return as_float(self.scale)


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
        check_number("lengths.Shape.others", self.others, POSITIVE)
        check_number("lengths.Shape.b2", self.b2, DECAY_RATE)

    def transformation(
        self, momentum: float | jax.Array, momenta_dtype: np.dtype | None
    ) -> optax.GradientTransformation:
        """Returns Adam, for parameters without roots."""
        adam = Adam(self.b2).transformation(momentum, momenta_dtype)
        return optax.chain(adam, optax.scale(as_float(self.others)))

    def measure(self, state: PyTree, tile: Tile) -> tuple[jax.Array, jax.Array, PyTree]:
        """Returns the norm of a root mean square of one; ``factor`` does the rest.

        A tile without a direction has no step.
        """
        entries = tile.entries.astype(tile.trace.dtype)
        return jnp.sqrt(entries), 0 * tile.trace, state

    def factor(self, rows: int, columns: int) -> float | jax.Array:
        """Returns the root mean square of the steps of a matrix."""
        del columns
        return rows**-0.5


def graft_tile(
    length: Length,
    momentum: float | jax.Array,
    count: jax.Array,
    state: PyTree,
    direction: jax.Array,
    gradient: jax.Array,
    trace: jax.Array,
    real: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, PyTree]:
    """Gives a direction the length of a step (A.2); returns what is kept, too."""
    tile = Tile(gradient, trace, real[0] * real[1], momentum, count)
    size, step, state = length.measure(state, tile)
    own = norm(direction)
    # A norm that is zero or not finite stands for a number out of range.
    usable = (own > 0) & (size > 0)
    grafted = direction * (size / jnp.where(usable, own, 1))
    return jnp.where(usable, grafted, step), state


def norm(x: jax.Array) -> jax.Array:
    """Returns the Frobenius norm; zero where its square overflows or underflows.

    In float32, norms from 3e-16 to 1e19 are in range. It is a sum in one pass: larger
    and smaller steps are taken as they are rather than measured twice.
    """
    square, limits = jnp.sum(jnp.square(jnp.abs(x))), jnp.finfo(x.dtype)
    least = float(limits.tiny) / float(limits.eps)
    in_range = (square >= least) & jnp.isfinite(square)
    return jnp.where(in_range, jnp.sqrt(jnp.where(in_range, square, 1)), 0)


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
    must = "an optax.GradientTransformation"
    check_type("graft: magnitude", magnitude, optax.GradientTransformation, must)
    check_type("graft: direction", direction, optax.GradientTransformation, must)
    magnitude = optax.with_extra_args_support(magnitude)
    direction = optax.with_extra_args_support(direction)

    def combine(step: jax.Array, along: jax.Array) -> jax.Array:
        if not along.size:
            return along
        wide = jnp.promote_types(along.dtype, jnp.float32)
        # Behind a barrier: of what is constant, XLA would rewrite (a / b) / c as
        # a / (b * c), where the product may underflow.
        step, direction = jax.lax.optimization_barrier((step, along.astype(wide)))
        # Divided by their largest entries, so that both have norms in range.
        step, size, _ = split_size(step.astype(wide))
        unit, _, usable = split_size(direction)
        factor = size * (norm(step) / jnp.where(usable, norm(unit), 1))
        grafted = jnp.minimum(factor, jnp.finfo(wide).max) * unit
        # Zero stays zero, and NaN stays NaN.
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
