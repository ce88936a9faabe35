"""Ablates the whitening rule: which of its changes matter, and what else was tried.

Question: the whitening rule differs from 0.1.0's rule with statistics by six changes.
What is each worth, singly and together? Do cheaper or stronger variants exist?
Method: one configurable rule, ``Ablated``, that plugs into ``jorge`` by the ``Rule``
protocol, with roots by polynomials. Single-shot in every row: on the MLP
and the ResNet at the rate and length of tuned SGD, on the transformer at the rate and
length of tuned AdamW, with interval 10 unless the variant says otherwise. Seeds 0 to 2;
the same batches and first parameters for all variants.
Answer: docs/whitening.md, from benchmarks/results/ablation.json.

    python -m benchmarks.training.ablation [--problems mlp resnet lm] [VARIANT ...]

Runs that the JSON holds are not repeated.
"""

import argparse
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from benchmarks.harness import results
from benchmarks.numerics.fourth_root import FourthRoot
from benchmarks.problems import PROBLEMS, language_model
from benchmarks.problems.training import trainer
from benchmarks.training import adamw
from jorge_optax import (
    BinomialSeries,
    PolynomialRoot,
    Preconditioner,
    Sides,
    Tiling,
    from_adamw,
    jorge,
)

SEEDS = results.sized((0, 1, 2), (0,))
RATES = {"mlp": 0.1, "resnet": 0.2, "lm": 0.004}  # tuned SGD's and tuned AdamW's
PROBLEM_NAMES = tuple(RATES)


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
        takes the roots by polynomials.
      source: What the statistics are taken of.
      normalize: Whether gradients are divided by their root mean square first.
      early_refreshes: The roots are refreshed at each of so many first steps.
      orthogonalize: Steps of Newton and Schulz after preconditioning.
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
        return self._root(left), self._root(right), left, right

    def _root(self, statistic):
        if self.ridge is None:
            root = {2: PolynomialRoot(), 4: FourthRoot()}[self.power]
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


def early(interval: int, steps: int) -> Callable[[Any], Any]:
    """Refreshes at each of the first steps, and every interval after."""
    return lambda count: jnp.where(count < steps, 1, interval)


BEST_ROOT = (-0.448, 0.158)  # of (1 + x)^(-1/2) on [0, 1]
OLD = Ablated("gradient", 4, False, 0.95, normalize=False, early_refreshes=0)
change = functools.partial(dataclasses.replace, OLD)
without = functools.partial(dataclasses.replace, Ablated())
# Options of jorge by variant.
VARIANTS: dict[str, dict[str, Any]] = {
    "0.1.0": {"rule": OLD},
    "+ order": {"rule": change(preconditions="nesterov")},
    "+ exponent": {"rule": change(power=2)},
    "+ exponent, coupling": {"rule": change(power=2, coupled=True)},
    "+ forgetting": {"rule": change(beta2=0.9)},
    "+ normalization": {"rule": change(normalize=True)},
    "+ early refreshes": {"rule": change(early_refreshes=20)},
    "+ order, exponent": {"rule": change(preconditions="nesterov", power=2)},
    "all": {"rule": Ablated()},
    "all - order": {"rule": without(preconditions="gradient")},
    "all - coupling": {"rule": without(coupled=False)},
    "all - exponent, coupling": {"rule": without(power=4, coupled=False)},
    "all - forgetting": {"rule": without(beta2=0.95)},
    "all - normalization": {"rule": without(normalize=False)},
    "all - early refreshes": {"rule": without(early_refreshes=0)},
    "all - normalization, early refreshes": {
        "rule": without(normalize=False, early_refreshes=0)
    },
    "beta2 0.8": {"rule": without(beta2=0.8)},
    "plain momentum": {"rule": without(preconditions="momentum")},
    "statistics of the momentum": {"rule": without(source="momentum")},
    "beta2 0.98": {"rule": without(beta2=0.98)},
    "exact roots": {"rule": without(ridge=1e-6)},
    "ridge 1e-2": {"rule": without(ridge=1e-2)},
    "ridge 1e-3": {"rule": without(ridge=1e-3)},
    "ridge 1e-4": {"rule": without(ridge=1e-4)},
    "start 0": {"rule": without(start=0.0)},
    "start 1": {"rule": without(start=1.0)},
    "interval 1, beta2 0.99": {"rule": without(beta2=0.99), "update_interval": 1},
    "interval 1, beta2 0.9": {"rule": without(beta2=0.9), "update_interval": 1},
    "interval 50": {"rule": Ablated(), "update_interval": 50},
    "interval 50, beta2 0.6": {"rule": without(beta2=0.6), "update_interval": 50},
    "tiles 128": {"rule": Ablated(), "tiling": Tiling(128)},
    "tiles 1024": {"rule": Ablated(), "tiling": Tiling(1024)},
    "orthogonalized by two steps": {"rule": without(orthogonalize=2)},
    "series, paper's exponent and order": {"rule": BinomialSeries()},
    "series, paper's exponent, nesterov": {
        "rule": BinomialSeries(preconditions="nesterov")
    },
    "series, early 20": {"rule": RootsOnly(), "update_interval": early(10, 20)},
    "series, interval 2": {"rule": RootsOnly(), "update_interval": 2},
    "series, best quadratic, early 20": {
        "rule": RootsOnly(factors=BEST_ROOT),
        "update_interval": early(10, 20),
    },
    "series, coupled, early 20": {
        "rule": RootsOnly(factors=BEST_ROOT, coupled=True),
        "update_interval": early(10, 20),
    },
    "series, coupled, spectral, early 20": {
        "rule": RootsOnly(factors=BEST_ROOT, coupled=True, spectral=True),
        "update_interval": early(10, 20),
    },
    "series, coupled, spectral, floor 0.7, early 20": {
        "rule": RootsOnly(factors=BEST_ROOT, coupled=True, spectral=True, floor=0.7),
        "update_interval": early(10, 20),
    },
    "self-correcting, interval 2": {"rule": SelfCorrecting(), "update_interval": 2},
    "self-correcting, early 20": {
        "rule": SelfCorrecting(),
        "update_interval": early(10, 20),
    },
}


@functools.cache
def _problem(name: str):
    return PROBLEMS[name]()


def run(name: str, variant: str, seeds) -> list[list]:
    """Trains with each seed; returns the curves of the metric."""
    options, rate = VARIANTS[variant], RATES[name]
    if name == "lm":
        config = from_adamw(
            adamw.schedule(rate),
            b2=adamw.B2,
            weight_decay=adamw.DECAY,
            leave_out=("embed", "position", "head"),
        )
        tiling = config.kwargs()["tiling"]
        options = {**options}
        if "tiling" in options:
            options["tiling"] = dataclasses.replace(
                tiling, max_dim=options["tiling"].max_dim
            )
        optimizer = config.optimizer(**options)
        return [
            [value for _, value in language_model.train(optimizer, s, adamw.STEPS)]
            for s in seeds
        ]
    problem = _problem(name)
    train = trainer(
        problem,
        lambda rate: jorge(
            optax.cosine_decay_schedule(rate, problem.steps), 0.9, **options
        ),
    )
    return [train(rate, seed) for seed in seeds]


def main() -> None:
    """Runs what the JSON lacks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--problems", nargs="*", default=PROBLEM_NAMES)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    arguments = parser.parse_args()
    for variant in arguments.variants or VARIANTS:
        for name in arguments.problems:
            known = {
                row["seed"]
                for row in results.rows("ablation")
                if (row["problem"], row["variant"]) == (name, variant)
            }
            seeds = [seed for seed in arguments.seeds if seed not in known]
            if not seeds:
                continue
            curves = run(name, variant, seeds)
            new = [
                {
                    "problem": name,
                    "variant": variant,
                    "seed": seed,
                    "final": curve[-1],
                    "curve": curve[:: max(1, len(curve) // 20)],
                }
                for seed, curve in zip(seeds, curves, strict=True)
            ]
            print(name, variant, [row["final"] for row in new], flush=True)
            with results.lock():
                results.write(
                    "ablation", [*results.rows("ablation"), *new], rates=RATES
                )


if __name__ == "__main__":
    main()
