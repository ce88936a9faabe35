"""Rules that were tried beside the package's own, each an object of ``Rule``.

``Ablated`` is the whitening rule with each of its parts as an option, ``RootsOnly`` the
paper's series with other exponents, ``SelfCorrecting`` keeps roots that the whitened
gradient corrects. They are written for clarity: no guards, no joined batches.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from benchmarks.numerics.inverse_root import PolynomialRoot
from jorge_optax import Preconditioner, Sides


@dataclasses.dataclass(frozen=True)
class Ablated:
    """The whitening rule with each of its parts as an option.

    Attributes:
      preconditions: Order: ``"nesterov"`` averages first, ``"gradient"`` after.
      power: The roots are the statistics to the power ``-1 / power``.
      coupled: Whether each side's statistic is taken of the gradient whitened by the
        other side.
      beta2: Weight of the old statistics at a refresh.
      start: Multiple of the identity added to the first Gram matrices.
      ridge: Share of the largest eigenvalue added to all, with exact roots; ``None``
        takes the roots by the package's polynomials.
      source: What the statistics are taken of.
      normalize: Whether gradients are divided by their root mean square first.
      early_refreshes: The roots are refreshed at each of so many first steps.
      orthogonalize: Steps of Newton and Schulz after preconditioning.
      polynomials: Other polynomials than the package's.
      sides: Whether both sides are whitened, or the shorter one alone.
    """

    preconditions: Literal["gradient", "momentum", "nesterov"] = "nesterov"
    power: int = 2
    coupled: bool = True
    beta2: float = 0.9
    start: float = 0.3
    ridge: float | None = None
    source: Literal["gradient", "momentum"] = "gradient"
    orthogonalize: int = 0
    normalize: bool = True
    early_refreshes: int = 20
    polynomials: tuple[tuple[float, ...], ...] | None = None
    sides: Literal["both", "shorter"] = "both"

    def init(self, tiles, *, eps, dtype) -> Preconditioner:
        """Starts with zeros: the first refresh sets all."""
        del eps
        return Preconditioner(_zeros(tiles, dtype), _zeros(tiles, dtype))

    def refresh(self, kept, gradients, momenta, *, damping, precision):
        """Moves the statistics, and takes their roots."""
        del damping, precision
        source = gradients if self.source == "gradient" else momenta
        roots, statistics = {}, {}
        for key, tiles in source.items():
            new = jax.vmap(self._refresh_tile)(
                tiles, *kept.roots[key], *kept.statistics[key]
            )
            roots[key], statistics[key] = Sides(*new[:2]), Sides(*new[2:])
        return Preconditioner(roots, statistics)

    def _refresh_tile(self, g, a, b, left, right):
        rows, columns = g.shape
        first = jnp.trace(left) == 0
        if self.normalize:
            g = g / (jnp.sqrt(jnp.mean(g * g)) + 1e-30)
        if self.coupled:
            unit = 1 / jnp.sqrt(jnp.sqrt(jnp.mean(g * g)) + 1e-30)
            a = jnp.where(first, unit * jnp.eye(rows), a)
            b = jnp.where(first, unit * jnp.eye(columns), b)
            if self.sides == "shorter":
                a, b = jnp.eye(rows), jnp.eye(columns)
            h, k = g @ b, a @ g
            grams = h @ h.T / columns, k.T @ k / rows
        else:
            grams = g @ g.T, g.T @ g
        new = []
        for old, gram in zip((left, right), grams, strict=True):
            eye = jnp.eye(len(gram))
            gram = (
                gram
                + jnp.where(first, self.start, 0) * jnp.trace(gram) / len(gram) * eye
            )
            weight = jnp.where(first, 0, self.beta2)
            new.append(weight * old + (1 - weight) * gram)
        left, right = new
        if self.coupled:  # only the product of the two scales is determined
            balance = jnp.sqrt((jnp.trace(right) / columns) / (jnp.trace(left) / rows))
            left, right = left * balance, right / balance
        a, b = self._root(left), self._root(right)
        if self.sides == "shorter":
            a = a if rows <= columns else jnp.eye(rows)
            b = b if rows > columns else jnp.eye(columns)
        return a, b, left, right

    def _root(self, statistic):
        if self.ridge is None:
            root = PolynomialRoot(self.power, self.polynomials)
            return root(statistic, "highest")
        values, vectors = jnp.linalg.eigh(statistic)
        largest = jnp.maximum(values[-1], 1e-37)
        values = jnp.maximum(values, 0) + self.ridge * largest
        return (vectors * values[None] ** (-1 / self.power)) @ vectors.T

    def precondition(self, kept, matrices, *, precision):
        """Multiplies from both sides; then orthogonalizes, if asked to."""
        del precision
        directions = {
            key: kept.roots[key].left @ tiles @ kept.roots[key].right
            for key, tiles in matrices.items()
        }
        if self.orthogonalize:
            return {
                key: newton_schulz(d, self.orthogonalize)
                for key, d in directions.items()
            }
        return directions


def _zeros(tiles, dtype) -> dict[str, Sides]:
    return {
        key: Sides(jnp.zeros((n, r, r), dtype), jnp.zeros((n, c, c), dtype))
        for key, (n, r, c) in ((k, t.shape) for k, t in tiles.items())
    }


def newton_schulz(x: jax.Array, steps: int) -> jax.Array:
    """Moves the singular values of each matrix towards one, by quintic steps."""
    wide = x.shape[-2] > x.shape[-1]
    x = x.mT if wide else x
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-30)
    coefficients = ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377))
    for a, b, c in coefficients[:steps]:
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if wide else x


@dataclasses.dataclass(frozen=True)
class RootsOnly:
    """The paper's series with another exponent: keeps roots and no statistics.

    Attributes:
      preconditions: As for ``Ablated``.
      power: 4 is the paper's, 2 whitens.
      factors: Factors of x and x^2.
      coupled: As for ``Ablated``.
      spectral: Whether X is divided by a tighter bound than its Frobenius norm.
      floor: Least beta2; None is the paper's dynamic one.
    """

    preconditions: Literal["gradient", "momentum", "nesterov"] = "nesterov"
    power: int = 2
    factors: tuple[float, float] = (-1 / 2, 3 / 8)
    coupled: bool = False
    spectral: bool = False
    floor: float | None = None

    def init(self, tiles, *, eps, dtype) -> Preconditioner:
        """Starts every root as ``eps^(-1/power) I``."""
        roots = {
            key: Sides(
                *(
                    jnp.tile(eps ** (-1 / self.power) * jnp.eye(m), (n, 1, 1))
                    for m in (rows, columns)
                )
            )
            for key, (n, rows, columns) in ((k, t.shape) for k, t in tiles.items())
        }
        return Preconditioner(roots, ())

    def refresh(self, kept, gradients, momenta, *, damping, precision):
        """Refreshes both roots of each tile."""
        del momenta, damping, precision
        roots = {
            key: Sides(*jax.vmap(self._refresh_tile)(tiles, *kept.roots[key]))
            for key, tiles in gradients.items()
        }
        return Preconditioner(roots, ())

    def _refresh_tile(self, g, a, b):
        if not self.coupled:
            return self._refresh_root(a, g @ g.T), self._refresh_root(b, g.T @ g)
        unit = jnp.sqrt(jnp.linalg.norm(a) / jnp.linalg.norm(b))  # balance
        a, b = a / unit, b * unit
        h, k = g @ b, a @ g
        return (
            self._refresh_root(a, h @ h.T / g.shape[1]),
            self._refresh_root(b, k.T @ k / g.shape[0]),
        )

    def _refresh_root(self, root, gram):
        x = gram
        for _ in range(self.power):
            x = root @ x
        norm = jnp.linalg.norm(x)
        if self.spectral:
            norm = jnp.sqrt(jnp.linalg.norm(x @ x))
        ratio = 1 / jnp.maximum(norm, 1e-30)
        if self.floor is not None:
            ratio = jnp.minimum(ratio, (1 - self.floor) / self.floor)
        x = ratio * x
        first, second = self.factors
        factor = jnp.eye(len(x)) + first * x + second * x @ x
        return (1 + ratio) ** (1 / self.power) * root @ factor

    def precondition(self, kept, matrices, *, precision):
        """Multiplies from both sides."""
        del precision
        return {
            k: kept.roots[k].left @ m @ kept.roots[k].right for k, m in matrices.items()
        }


@dataclasses.dataclass(frozen=True)
class SelfCorrecting:
    """Roots corrected by the whitened gradient: ``A <- F A F``, without statistics.

    Attributes:
      beta2: Weight of the past at a refresh.
      preconditions: As for ``Ablated``.
    """

    beta2: float = 0.7
    preconditions: Literal["gradient", "momentum", "nesterov"] = "nesterov"

    def init(self, tiles, *, eps, dtype) -> Preconditioner:
        """Starts with zeros, which the first refresh replaces."""
        del eps
        return Preconditioner(_zeros(tiles, dtype), ())

    def refresh(self, kept, gradients, momenta, *, damping, precision):
        """Corrects both roots of each tile."""
        del momenta, damping, precision
        roots = {
            key: Sides(*jax.vmap(self._refresh_tile)(tiles, *kept.roots[key]))
            for key, tiles in gradients.items()
        }
        return Preconditioner(roots, ())

    def _refresh_tile(self, g, a, b):
        rows, columns = g.shape
        first = jnp.trace(a) == 0
        unit = 1 / jnp.sqrt(jnp.sqrt(jnp.mean(g * g)) + 1e-30)
        a = jnp.where(first, unit * jnp.eye(rows), a)
        b = jnp.where(first, unit * jnp.eye(columns), b)
        d = a @ g @ b
        return self._correct(a, d @ d.T / columns), self._correct(b, d.T @ d / rows)

    def _correct(self, root, w):
        bound = jnp.sqrt(jnp.linalg.norm(w @ w))
        weight = jnp.minimum(
            (1 - self.beta2) / self.beta2, 1 / jnp.maximum(bound, 1e-30)
        )
        x = weight * w  # (I + x)^(-1/4) on [0, 1]
        factor = jnp.eye(len(x)) - 0.2304 * x + 0.0727 * x @ x
        root = jnp.sqrt(1 + weight) * factor @ root @ factor
        return (root + root.T) / 2

    def precondition(self, kept, matrices, *, precision):
        """Multiplies from both sides."""
        del precision
        return {
            k: kept.roots[k].left @ m @ kept.roots[k].right for k, m in matrices.items()
        }
