"""Lengths of the step: what gives each tile's step its norm.

A length is passed to :func:`jorge_optax.jorge` as ``grafting``. The step of a tile has
the direction of the rule and the norm of what the length computes; parameters without
roots take the length's own step. What a length accumulates lives on the stacks of
tiles, beside the roots. Where the rule already keeps the momentum of the gradients, a
length uses that momentum and keeps none of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax

from jorge_optax._checks import as_float, check_below_one, check_positive
from jorge_optax._numerics import hide_origin, safe_sqrt, split_scales
from jorge_optax._types import Dtype, PyTree, Scalar, Stacks

__all__ = ("SGD", "Adam", "Length", "Shape")


@runtime_checkable
class Length(Protocol):
    """What gives each tile's step its norm.

    Attributes:
      uses_momentum: Optional. ``False`` if :meth:`measure` does without the momentum;
        it is then called for rules that keep none, too.
      factor: Optional. Function of the rows and columns of a parameter's matrix that
        gives the number by which the step of the whole parameter is multiplied; no
        function, or ``None``, stands for 1.
    """

    def transformation(
        self, momentum: Scalar, accumulator_dtype: Dtype | None
    ) -> optax.GradientTransformation:
        """Returns the optimizer of unit learning rate whose steps are measured."""
        ...

    def init(self, tiles: PyTree) -> PyTree:
        """Returns what :meth:`measure` accumulates beside the shared momentum."""
        ...

    def measure(
        self,
        state: PyTree,
        gradients: Stacks,
        momenta: Stacks,
        *,
        momentum: Scalar,
        count: jax.Array,
    ) -> tuple[Stacks, PyTree]:
        """Computes the same steps from the momentum that the rule keeps.

        Args:
          state: What :meth:`init` returned.
          gradients: The gradients of this step.
          momenta: The sums ``s = g + momentum * s``, this step's gradient included.
          momentum: Their decay rate.
          count: Number of this step, from 1.

        Returns:
          The steps and the new state. Of a step only the norm counts, unless the
          direction of the rule is out of range: then the step itself is taken.
        """
        ...


@dataclasses.dataclass(frozen=True)
class SGD:
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

    @property
    def factor(self) -> Callable[[int, int], float] | None:
        """Gives every matrix the same factor; ``None`` for 1."""
        return _constant(self.scale)

    def transformation(
        self, momentum: Scalar, accumulator_dtype: Dtype | None
    ) -> optax.GradientTransformation:
        """Returns SGD's momentum."""
        return optax.trace(momentum, accumulator_dtype=accumulator_dtype)

    def init(self, tiles: PyTree) -> PyTree:
        """Returns an empty state: the shared momentum suffices."""
        del tiles
        return ()

    def measure(
        self,
        state: PyTree,
        gradients: Stacks,
        momenta: Stacks,
        *,
        momentum: Scalar,
        count: jax.Array,
    ) -> tuple[Stacks, PyTree]:
        """Returns the momentum."""
        del gradients, momentum, count
        return momenta, state


@dataclasses.dataclass(frozen=True)
class Adam:
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

    b2: float = 0.999
    eps: float = 1e-8
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Checks the options."""
        check_below_one("lengths.Adam.b2", self.b2)
        check_positive("lengths.Adam.eps", self.eps)
        check_positive("lengths.Adam.scale", self.scale)

    @property
    def factor(self) -> Callable[[int, int], float] | None:
        """Gives every matrix the same factor; ``None`` for 1."""
        return _constant(self.scale)

    def transformation(
        self, momentum: Scalar, accumulator_dtype: Dtype | None
    ) -> optax.GradientTransformation:
        """Returns Adam with unit learning rate."""
        return optax.scale_by_adam(
            momentum, self.b2, as_float(self.eps), mu_dtype=accumulator_dtype
        )

    def init(self, tiles: PyTree) -> PyTree:
        """Returns second moments of zero."""
        return jax.tree.map(lambda tile: jnp.zeros(tile.shape, tile.dtype), tiles)

    def measure(
        self,
        state: PyTree,
        gradients: Stacks,
        momenta: Stacks,
        *,
        momentum: Scalar,
        count: jax.Array,
    ) -> tuple[Stacks, PyTree]:
        """Computes Adam's step from the momentum and a second moment."""
        second = jax.tree.map(
            lambda nu, g: self.b2 * nu + (1 - self.b2) * jnp.square(g), state, gradients
        )
        first_weight = (1 - momentum) / (1 - jnp.power(momentum, count))
        second_weight = 1 / (1 - jnp.power(self.b2, count))
        eps = as_float(self.eps)
        steps = jax.tree.map(
            lambda s, nu: (
                first_weight * s / (safe_sqrt(second_weight * nu) + eps)
            ).astype(s.dtype),
            momenta,
            second,
        )
        return steps, second


@dataclasses.dataclass(frozen=True)
class Shape:
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
    b2: float = 0.95
    uses_momentum: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Checks the options."""
        check_positive("lengths.Shape.others", self.others)
        check_below_one("lengths.Shape.b2", self.b2)

    def factor(self, rows: int, columns: int) -> float:
        """Returns the root mean square of the steps of a matrix."""
        del columns
        return rows**-0.5

    def transformation(
        self, momentum: Scalar, accumulator_dtype: Dtype | None
    ) -> optax.GradientTransformation:
        """Returns Adam, for parameters without roots."""
        adam = optax.scale_by_adam(momentum, self.b2, mu_dtype=accumulator_dtype)
        return optax.chain(adam, optax.scale(as_float(self.others)))

    def init(self, tiles: PyTree) -> PyTree:
        """Returns an empty state."""
        del tiles
        return ()

    def measure(
        self,
        state: PyTree,
        gradients: Stacks,
        momenta: Stacks,
        *,
        momentum: Scalar,
        count: jax.Array,
    ) -> tuple[Stacks, PyTree]:
        """Returns the momentum at a root mean square of one; ``factor`` does the rest.

        A tile whose momentum is zero has no step.
        """
        del momentum, count
        moved = momenta or gradients
        if not moved:
            return {}, state
        units = split_scales([hide_origin(x) for x in moved.values()])
        norms = [safe_sqrt(jnp.mean(jnp.square(unit), (1, 2))) for unit, _ in units]
        steps = {
            key: unit / jnp.where(norm > 0, norm, 1)[:, None, None]
            for key, (unit, _), norm in zip(moved, units, norms, strict=True)
        }
        return steps, state


def _constant(scale: float) -> Callable[[int, int], float] | None:
    return None if scale == 1 else lambda rows, columns: as_float(scale)
