"""Rules that were tried beside the package's own, each an object of ``Rule``.

``Corrected`` is the package's whitening rule with each of its parts as an option,
``Tracked`` its predecessor, which keeps statistics and takes roots of them, and
``RootsOnly`` the paper's series with other exponents. They are written for clarity: no
guards, no joined batches.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.numerics.inverse_root import PolynomialRoot
from jorge_optax import Preconditioner, Sides
from jorge_optax._whitening import largest_ratio


@dataclasses.dataclass(frozen=True)
class Tracked:
    """Keeps statistics, and takes roots of them.

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
      polynomials: Other polynomials than the best three.
      sides: Whether both sides are whitened, or the shorter one alone.
    """

    preconditions: Literal["gradient", "momentum", "nesterov"] = "nesterov"
    power: int = 2
    coupled: bool = True
    beta2: float = 0.9
    start: float = 0.3
    ridge: float | None = None
    source: Literal["gradient", "momentum"] = "gradient"
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
        """Multiplies from both sides."""
        del precision
        return {
            k: kept.roots[k].left @ m @ kept.roots[k].right for k, m in matrices.items()
        }


def _zeros(tiles, dtype) -> dict[str, Sides]:
    return {
        key: Sides(jnp.zeros((n, r, r), dtype), jnp.zeros((n, c, c), dtype))
        for key, (n, r, c) in ((k, t.shape) for k, t in tiles.items())
    }


def newton_schulz(x: jax.Array, steps: int) -> jax.Array:
    """Moves the singular values of each matrix towards one, by quintic steps."""
    if not steps:
        return x
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
      preconditions: As for ``Tracked``.
      power: 4 is the paper's, 2 whitens.
      factors: Factors of x and x^2.
      coupled: As for ``Tracked``.
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
class Corrected:
    """The package's whitening rule with each of its parts as an option.

    Attributes:
      preconditions: Order: ``"nesterov"`` averages first, ``"gradient"`` after.
      power: The roots approximate the covariances to the power ``-1 / power``.
      coupled: Whether each side is the covariance of the gradient that the other side
        has whitened, or of the gradient itself.
      normalize: Whether gradients are divided by their root mean square first.
      ridge: Share of the trace that is added to the diagonal of a covariance.
      limited: Whether the spread of a root limits the weight of a correction.
      orthogonalize: Steps of Newton and Schulz after preconditioning.
      nodes: Chebyshev nodes of the polynomial; 3 save a product a side. With 2, the
        ends of the range in place of Chebyshev nodes, two products: a straight line
        needs no square, and the range ends at the Frobenius norm of W.
      reach: Where the polynomial ends, which bounds the weight of a correction. Three
        nodes fall all the way, and are within 1.3%, up to 3.
      linear: Whether the ridge is a multiple of the root and not of its square, which
        saves a product a side.
      source: What corrects the roots.
      start: Multiple of the identity that roots start as.
      beta2: Weight of the past at a refresh.
      early_refreshes: The roots are refreshed at each of so many first steps.
    """

    preconditions: Literal["gradient", "momentum", "nesterov"] = "nesterov"
    power: int = 2
    coupled: bool = True
    normalize: bool = True
    ridge: float = largest_ratio(0.9) ** -2
    limited: bool = False
    orthogonalize: int = 0
    nodes: Literal[2, 3, 5] = 5
    reach: float = 10.0
    linear: bool = False
    source: Literal["gradient", "momentum"] = "gradient"
    start: float = 1.0
    beta2: float = 0.9
    early_refreshes: int = 50

    def init(self, tiles, *, eps, dtype) -> Preconditioner:
        """Starts with zeros, which the first refresh replaces."""
        del eps
        return Preconditioner(_zeros(tiles, dtype), ())

    def refresh(self, kept, gradients, momenta, *, damping, precision):
        """Corrects both roots of each tile."""
        del damping, precision
        source = gradients if self.source == "gradient" else momenta
        roots = {
            key: Sides(*jax.vmap(self._refresh_tile)(tiles, *kept.roots[key]))
            for key, tiles in source.items()
        }
        return Preconditioner(roots, ())

    def _refresh_tile(self, g, a, b):
        rows, columns = g.shape
        size = jnp.sqrt(jnp.mean(g * g)) + 1e-30
        if self.normalize:
            g, size = g / size, 1.0
        start = self.start * size ** (-1 / self.power)
        a = jnp.where(jnp.trace(a) == 0, start * jnp.eye(rows), a)
        b = jnp.where(jnp.trace(b) == 0, start * jnp.eye(columns), b)
        # What whitens: the inverse square roots.
        left, right = (a, b) if self.power == 2 else (a @ a, b @ b)
        by_left, by_right = left @ g, g @ right
        white = by_left @ right
        mine, other = (white, white) if self.coupled else (by_left, by_right)
        met = (by_right, by_left) if self.coupled else (g, g)
        a = self._correct(a, left, mine @ mine.T / columns, met[0], columns)
        b = self._correct(b, right, other.T @ other / rows, met[1], rows)
        balance = jnp.sqrt((jnp.trace(b) / columns) / (jnp.trace(a) / rows))
        return a * balance, b / balance

    def _correct(self, root, whitens, w, met, width):
        squared, energy = whitens @ whitens, jnp.sum(met * met) / width
        c = jnp.sqrt(jnp.linalg.norm(squared) * energy / (jnp.trace(w) + 1e-30))
        share = jnp.asarray(1 - self.beta2)
        if self.limited:
            share = jnp.minimum(share, 6 * c / (c + 1) ** 2)
        if self.linear:
            w = w + jnp.sqrt(self.ridge * energy) * whitens
        else:
            w = w + self.ridge * energy * squared
        if self.nodes == 2:
            return self._correct_by_line(root, w, share / (1 - share))
        bound = jnp.sqrt(jnp.linalg.norm(w @ w)) + 1e-30
        weight = jnp.minimum(share / (1 - share), self.reach / bound)
        z = 2 * w / bound - jnp.eye(len(w))
        nodes = np.cos(np.pi * (2 * np.arange(self.nodes) + 1) / (2 * self.nodes))
        solve = np.linalg.inv(np.vander(nodes, increasing=True))
        values = (1 + weight * bound * (1 + nodes) / 2) ** (-0.5 / self.power)
        terms = jnp.asarray(solve, w.dtype) @ values
        eye, z2 = jnp.eye(len(w)), z @ z
        factor = terms[0] * eye + terms[1] * z + terms[2] * z2
        if self.nodes == 5:
            factor += z2 @ (terms[3] * z + terms[4] * z2)
        root = (1 + weight) ** (1 / self.power) * factor @ root @ factor
        return (root + root.T) / 2

    def _correct_by_line(self, root, w, weight):
        """Factors of degree 1, multiplied so that a W of one keeps the root."""
        norm = jnp.maximum(jnp.linalg.norm(w), 1)
        size = (1 - (1 + weight * norm) ** (-0.5 / self.power)) / norm
        factor = (jnp.eye(len(w)) - size * w) / (1 - size)
        root = factor @ root @ factor
        return (root + root.T) / 2

    def precondition(self, kept, matrices, *, precision):
        """Multiplies from both sides; then orthogonalizes, if asked to."""
        del precision
        return {
            key: newton_schulz(
                kept.roots[key].left @ tiles @ kept.roots[key].right,
                self.orthogonalize,
            )
            for key, tiles in matrices.items()
        }
