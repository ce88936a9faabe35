"""The protocol of a rule, for one matrix, and in which precision it computes."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jorge_optax._errors import canonical_dtype, check_precision, check_type
from jorge_optax._tiles import PyTree


class Root(NamedTuple):
    """A matrix ``scale * unit``, of which neither part leaves the range of numbers.

    Attributes:
      unit: ``[m, m]``, of a norm that the rule fixes; zero on padded rows.
      scale: ``[]``, in float32 or wider.
    """

    unit: jax.Array
    scale: jax.Array


class Rounding(NamedTuple):
    """How precise a refresh is.

    Attributes:
      dtype: The dtype that roots are kept in.
      products: Relative rounding error of the matrix products that refresh them.
    """

    dtype: np.dtype
    products: float


@dataclasses.dataclass(frozen=True)
class Numerics:
    """In which dtypes state is kept, and in which precision products are computed.

    ``numerics="exact"`` is ``Numerics(apply="highest")``. ``numerics="reduced"`` is
    ``Numerics("bfloat16", "bfloat16", "default")``: half the memory, and the products
    of every step in TF32 or bfloat16.

    Attributes:
      roots: Name of the dtype of the roots.
      momenta: Name of the dtype of the momenta; ``None`` is float32, or the dtype of
        the parameters if that is wider.
      apply: Precision of the products that apply the roots, at every step, as in
        :func:`jax.numpy.matmul`; without ``"highest"``, float32 products run in TF32 on
        recent GPUs. ``None`` is what suits the rule: ``"high"`` for :class:`Whitening`,
        ``"highest"`` for :class:`BinomialSeries`.
      refresh: Precision of the products that refresh the roots.

    Examples:
      >>> from jorge_optax import Numerics, jorge
      >>> optimizer = jorge(0.1, numerics=Numerics(roots="bfloat16"))
    """

    roots: str = "float32"
    momenta: str | None = None
    apply: str | None = None
    refresh: str = "highest"

    def __post_init__(self) -> None:
        """Checks dtypes and precisions."""
        canonical_dtype("Numerics.roots", self.roots)
        if self.momenta is not None:
            canonical_dtype("Numerics.momenta", self.momenta)
        check_precision("Numerics.apply", self.apply or "highest")
        check_precision("Numerics.refresh", self.refresh)

    def rounding(self) -> Rounding:
        """Returns how precise a refresh is: TF32 has 11 bits, bfloat16 has 8."""
        high, default = jax.lax.Precision.HIGH, jax.lax.Precision.DEFAULT
        least = {high: 2.0**-11, default: 2.0**-8}
        of_products = least.get(jax.lax.Precision(self.refresh), 0.0)
        wide = jnp.promote_types(self.roots, jnp.float32)
        own = float(jnp.finfo(wide).eps) / 2
        return Rounding(jnp.dtype(self.roots), max(own, of_products))


class Rule:
    """How roots start, are refreshed, and are applied, for one matrix.

    :class:`BinomialSeries` is the paper's rule, :class:`Whitening` the recommended one.
    A rule of one's own derives from this class, best as a frozen dataclass of numbers.
    Each method takes one tile or one side of it; the caller vmaps it. Padded rows and
    columns of a tile are zero, and a root must keep them zero.

    Attributes:
      momentum: ``"paper"`` preconditions each gradient and averages the results;
        ``"nesterov"`` preconditions Nesterov's momentum of the gradients.
      early_refreshes: The roots are refreshed at each of so many first steps, whatever
        the interval.
      precision: Precision of the products that apply the roots, where
        :class:`Numerics` leaves it open.
      risk: Roots whose least eigenvalue is below so many rounding errors of the largest
        are reported by :func:`diagnostics`; 0 for rules that bound their rounding.

    Examples:
      A rule that divides each row by its own running root mean square:

      >>> import dataclasses
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jorge_optax import Rule, jorge
      >>> @dataclasses.dataclass(frozen=True)
      ... class RowScaling(Rule):
      ...   decay: float = 0.9
      ...
      ...   def init(self, real, dtype):
      ...     return real.astype(dtype)  # of each row, its mean square
      ...
      ...   def observe(self, left, right, gradient, size):
      ...     square = (gradient * size) ** 2
      ...     return jnp.mean(square, 1), jnp.mean(square, 0)
      ...
      ...   def refresh(self, root, seen, real, rounding):
      ...     return self.decay * root + (1 - self.decay) * seen
      ...
      ...   def precondition(self, left, right, matrix):
      ...     return matrix * jax.lax.rsqrt(left + 1e-12)[:, None]
      ...
      ...   def matrix(self, root):
      ...     return jnp.diag(jax.lax.rsqrt(root + 1e-12))
      >>> optimizer = jorge(0.1, rule=RowScaling())
      >>> state = optimizer.init({"w": jnp.ones((3, 2))})
    """

    momentum: ClassVar[str] = "nesterov"
    early_refreshes: int = 0
    precision: ClassVar[str] = "highest"
    risk: ClassVar[float] = 0.0

    def init(self, real: jax.Array, dtype: np.dtype) -> PyTree:
        """Returns the root of one side before the first step.

        Args:
          real: ``[m]``, one for real rows and zero for padded ones.
          dtype: The dtype to keep the root in.
        """
        raise NotImplementedError

    def observe(
        self, left: PyTree, right: PyTree, gradient: jax.Array, size: jax.Array
    ) -> tuple[PyTree, PyTree]:
        """Returns what each side has to see of a gradient to be refreshed.

        Args:
          left: The root of the left side, in float32 or wider.
          right: The root of the right side.
          gradient: ``[R, C]``, finite, divided by its largest entry.
          size: That entry.
        """
        raise NotImplementedError

    def refresh(
        self, root: PyTree, seen: PyTree, real: jax.Array, rounding: Rounding
    ) -> PyTree:
        """Returns the new root of one side, in any dtype.

        Sides of equal length are refreshed together, so this must not depend on which
        side it is. It runs in a conditional; a tile whose gradient is zero or not
        finite keeps its old roots.

        Args:
          root: The old root, in float32 or wider.
          seen: What :meth:`observe` returned for this side.
          real: ``[m]``, one for real rows and zero for padded ones.
          rounding: How precise the refresh is.
        """
        raise NotImplementedError

    def precondition(self, left: PyTree, right: PyTree, matrix: jax.Array) -> jax.Array:
        """Returns the direction of a gradient or momentum, at every step.

        With grafting, a tile whose direction is not finite takes the grafted step.

        Args:
          left: The root of the left side, in the dtype of the matrix.
          right: The root of the right side.
          matrix: ``[R, C]``.
        """
        raise NotImplementedError

    def adapt_init(self, tile: jax.Array) -> PyTree:
        """Returns what :meth:`adapt` keeps for a tile of this shape and dtype."""
        del tile
        return ()

    def adapt(
        self, state: PyTree, direction: jax.Array, *, count: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        """Changes a direction at every step, before it gets its length.

        Args:
          state: What :meth:`adapt_init` or the last step returned.
          direction: ``[R, C]``.
          count: Number of this step, from 1.
        """
        del count
        return direction, state

    def matrix(self, root: PyTree) -> jax.Array:
        """Returns the matrix ``[m, m]`` that a root stands for, for diagnostics."""
        return root.scale * root.unit

    def report(self, root: PyTree, seen: PyTree) -> dict[str, jax.Array]:
        """Returns further numbers of one side and one gradient, for diagnostics."""
        del root, seen
        return {}


def check_rule(rule: object) -> Rule:
    """Returns a rule as it is; raises unless it is one."""
    if isinstance(rule, Rule):
        if rule.momentum not in ("paper", "nesterov"):
            raise ValueError(
                f"{type(rule).__name__}.momentum must be 'paper' or 'nesterov', got "
                f"{rule.momentum!r}."
            )
        return rule
    found = rule.__name__ if isinstance(rule, type) else repr(rule)
    names = ("BinomialSeries", "Whitening")
    meant = [name for name in names if name.lower() == found.strip("'\"").lower()]
    raise TypeError(
        "rule must be BinomialSeries(), which is the paper's rule, Whitening(), an "
        f"instance of another jorge_optax.Rule, or None, got {found}"
        + (f": write rule={meant[0]}()." if meant else ".")
    )


def numerics_of(numerics: Any) -> Numerics:
    """Returns the numerics that an option names."""
    if numerics == "exact":
        return Numerics(apply="highest")
    if numerics == "reduced":
        return Numerics("bfloat16", "bfloat16", "default")
    must = "a jorge_optax.Numerics, 'exact', 'reduced' or None"
    check_type("numerics", numerics, Numerics | None, must)
    return Numerics() if numerics is None else numerics


def split_size(matrix: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Divides a matrix by its largest entry, so that sums of squares stay in range.

    Returns:
      The quotient, the divisor, and whether the entry is usable: finite and larger than
      the subnormal numbers. Else the matrix stays as it is, and the divisor is one.
    """
    # A constant to differentiation: what is divided by it is multiplied by it later.
    size = jax.lax.stop_gradient(jnp.max(jnp.abs(matrix)))
    usable = (size >= jnp.finfo(matrix.dtype).tiny) & jnp.isfinite(size)
    # Beyond 1 / tiny the reciprocal, by which XLA multiplies, is subnormal: zero.
    size = jnp.where(usable, jnp.minimum(size, 1 / jnp.finfo(matrix.dtype).tiny), 1)
    return matrix / size, size, usable
