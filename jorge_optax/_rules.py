"""The rules by which roots are refreshed: the paper's, and one that is nearer to exact.

A rule is a frozen object of plain numbers. It says what the state holds beside the
roots, and how one refresh turns roots, that, and new gradients into new ones.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jorge_optax._checks import check_number
from jorge_optax._composite import POLYNOMIALS, Polynomial, composite_root
from jorge_optax._refresh import refresh_by_series, refresh_by_statistics
from jorge_optax._roots import BINOMIAL_SERIES, Roots
from jorge_optax._stacks import Stacks


@dataclasses.dataclass(frozen=True)
class Series:
    r"""The paper's refresh: a truncated series about the old root.

    .. math:: \hat L \leftarrow \beta_2^{-1/4} \hat L
      \left(I + f_1 \tfrac{X}{\|X\|} + f_2 \tfrac{X^2}{\|X\|^2} + \dots\right),
      \qquad X = \hat L^4 G G^\top

    Attributes:
      factors: :math:`f_1, f_2, \dots`; any polynomial. The default is the paper's,
        the first two terms of the binomial series of :math:`(1 + x)^{-1/4}`.

    Examples:
      >>> from jorge_optax import Series, jorge
      >>> optimizer = jorge(0.1, refresh=Series())  # the default
      >>> three_terms = jorge(0.1, refresh=Series((-1 / 4, 5 / 32, -15 / 128)))
    """

    factors: tuple[float, ...] = BINOMIAL_SERIES

    def __post_init__(self) -> None:
        """Checks the factors."""
        object.__setattr__(
            self, "factors", _coefficients("Series.factors", self.factors, at_least=1)
        )

    def init(self, stacks: Any, dtype: Any) -> Any:
        """Nothing beside the roots."""
        del stacks, dtype
        return optax.EmptyState()

    def refresh(
        self,
        roots: dict[str, Roots],
        statistics: Any,
        gradients: Stacks,
        *,
        damping: Any,
        precision: Any,
    ) -> tuple[dict[str, Roots], Any]:
        """New roots (lines 5 to 8 of the paper's Algorithm 2)."""
        new = refresh_by_series(
            roots, gradients, factors=self.factors, damping=damping, precision=precision
        )
        return new, statistics


@dataclasses.dataclass(frozen=True)
class Composite:
    r"""Tracks Shampoo's statistics, and takes their roots by a few polynomials.

    .. math::

      L \leftarrow \beta_2 L + (1 - \beta_2) G G^\top, \qquad
      \hat L = p_0(x_0)\,p_1(x_1) \cdots \approx L^{-1/4}, \qquad
      x_{k+1} = x_k\,p_k(x_k)^4

    with :math:`x_0 = L` over a bound of its largest eigenvalue. A multiple of the
    identity, ``start`` times as large as the first gram, is added to that gram, so that
    the first steps are not led astray by directions not seen yet. The roots are
    symmetric and positive definite, depend on the statistics alone, so that no error
    is carried on, and are close to those of Shampoo with exact roots from the first
    refresh. The statistics take as much memory as the roots.

    Attributes:
      beta2: weight of the old statistics at a refresh.
      start: how large a multiple of the identity the statistics start with.
      polynomials: :math:`p_0, p_1, \dots`, each the coefficients of
        :math:`1, x, x^2, \dots`; positive on [0, 1].

    Examples:
      >>> from jorge_optax import Composite, jorge
      >>> optimizer = jorge(0.1, refresh=Composite())
    """

    beta2: float = 0.95
    start: float = 0.3
    polynomials: tuple[Polynomial, ...] = POLYNOMIALS

    def __post_init__(self) -> None:
        """Checks all."""
        check_number(
            "Composite.beta2", self.beta2, "must lie in [0, 1)", lambda x: 0 <= x < 1
        )
        check_number(
            "Composite.start",
            self.start,
            "must be finite and at least 0",
            lambda x: 0 <= x < math.inf,
        )
        if not self.polynomials:
            raise ValueError("Composite.polynomials must hold at least one polynomial.")
        name = "Composite.polynomials"
        checked = tuple(_coefficients(name, p, at_least=2) for p in self.polynomials)
        x = np.linspace(0, 1, 1001) ** 4
        for polynomial in checked:
            factor = np.polynomial.polynomial.polyval(x, polynomial)
            if np.min(factor) <= 0:
                raise ValueError(
                    f"{name} must be positive on all that the one before makes of "
                    f"[0, 1], got {polynomial}, which is {np.min(factor):.3g} "
                    "somewhere: roots would not be positive definite."
                )
            x = x * factor**4
        object.__setattr__(self, "polynomials", checked)

    def root(self, statistic: jax.Array, precision: Any) -> jax.Array:
        """About ``statistic^(-1/4)``, for one matrix."""
        return composite_root(
            statistic, polynomials=self.polynomials, precision=precision
        )

    def init(self, stacks: Any, dtype: Any) -> Any:
        """Statistics of zero."""
        dtype = jnp.promote_types(dtype, jnp.float32)
        if not isinstance(stacks, dict):
            return jnp.zeros([], dtype)
        return {
            key: Roots(jnp.zeros((n, rows, rows), dtype), jnp.zeros((n, c, c), dtype))
            for key, (n, rows, c) in ((k, s.shape) for k, s in stacks.items())
        }

    def refresh(
        self,
        roots: dict[str, Roots],
        statistics: Any,
        gradients: Stacks,
        *,
        damping: Any,
        precision: Any,
    ) -> tuple[dict[str, Roots], Any]:
        """New roots and statistics."""
        return refresh_by_statistics(
            roots,
            statistics,
            gradients,
            beta2=self.beta2,
            start=self.start,
            root=functools.partial(self.root, precision=precision),
            damping=damping,
            precision=precision,
        )


def _coefficients(name: str, values: Any, at_least: int) -> tuple[float, ...]:
    rule = f"must be at least {at_least} finite number{'s'[: at_least != 1]}"
    try:
        values = tuple(values)
    except TypeError as error:
        raise TypeError(f"{name} {rule}, got {values!r}.") from error
    if len(values) < at_least or not all(
        isinstance(v, numbers.Real) and math.isfinite(v) for v in values
    ):
        raise ValueError(f"{name} {rule}, got {values!r}.")
    return tuple(map(float, values))
