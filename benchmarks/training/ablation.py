"""Ablates the whitening rule: which of its changes matter, and what else was tried.

Question: the whitening rule differs from the paper's by its order, its exponent, the
coupling of the two sides, and more. What is each worth? Do cheaper or stronger variants
exist?
Method: rules that plug into ``jorge`` by the ``Rule`` protocol
(benchmarks/training/prototypes.py). Single-shot in every row: on the MLP and the ResNet
at the rate and length of tuned SGD, on the transformer at the rate and length of tuned
AdamW (embeddings and the last layer left to Adam), refreshed every 10 steps unless the
variant says otherwise. Seeds 100 to 102, which no comparison of optimizers reports:
choices are made here, and evidence for them comes from other seeds. The same batches
and first parameters for all variants.
Answer: docs/whitening.md, from benchmarks/results/ablation.json.

    python -m benchmarks.training.ablation [--problems mlp resnet lm] [VARIANT ...]

Runs that the JSON holds are not repeated.
"""

import argparse
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import optax

from benchmarks.harness import results
from benchmarks.problems import PROBLEMS, language_model
from benchmarks.problems.training import trainer
from benchmarks.training import adamw
from benchmarks.training.prototypes import Corrected, RootsOnly, Tracked
from jorge_optax import (
    BinomialSeries,
    MatrixView,
    Tiling,
    Whitening,
    default_view,
    from_adamw,
    jorge,
    lengths,
)

SEEDS = results.sized((100, 101, 102), (100,))
RATES = {"mlp": 0.1, "resnet": 0.2, "lm": 0.004}  # tuned SGD's and tuned AdamW's
# The best of their degrees, by the number of products; benchmarks/numerics/design.py.
POLYNOMIALS = {
    7: (  # degrees 4, 4: eigenvalues from 1e-3, error 6%
        (7.18192, -63.87731, 206.39227, -261.51312, 112.81624),
        (5.30532, -25.29241, 62.65818, -68.63244, 27.02137),
    ),
    10: (  # degrees 4, 4, 1: from 3e-4, 3%
        (7.37548, -68.75876, 225.4643, -287.74784, 124.66682),
        (5.96886, -38.45084, 110.21313, -131.26313, 54.53198),
        (1.81765, -0.84422),
    ),
}
BEST_ROOT = (-0.448, 0.158)  # of (1 + x)^(-1/2) on [0, 1]


def early(interval: int, steps: int) -> Callable[[Any], Any]:
    """Refreshes at each of the first steps, and every interval after."""
    return lambda count: jnp.where(count < steps, 1, interval)


RULE = "the rule"
# Options of jorge by variant.
VARIANTS: dict[str, dict[str, Any]] = {
    RULE: {"rule": Whitening()},
    # Without one of its parts.
    "preconditions the gradient, averages after": {"rule": Corrected("gradient")},
    "preconditions the momentum, not Nesterov's": {"rule": Corrected("momentum")},
    "exponent -1/4": {"rule": Corrected(power=4)},
    "sides not coupled": {"rule": Corrected(coupled=False)},
    "exponent -1/4, not coupled": {"rule": Corrected(power=4, coupled=False)},
    "all three": {"rule": Corrected("gradient", power=4, coupled=False)},
    "forgets within 1,000 steps, beta2 0.99": {"rule": Corrected(beta2=0.99)},
    "all four": {"rule": Corrected("gradient", power=4, coupled=False, beta2=0.99)},
    "gradients of their own size": {"rule": Corrected(normalize=False)},
    "eigenvalues up to 1000 apart": {"rule": Corrected(ridge=1e-6)},
    "the same, weight limited by the spread": {
        "rule": Corrected(ridge=1e-6, limited=True)
    },
    "no early refreshes": {"rule": Whitening(early_refreshes=0)},
    "20 early refreshes": {"rule": Whitening(early_refreshes=20)},
    "corrected by the momentum": {"rule": Corrected(source="momentum")},
    "last layer left to SGD": {"rule": Whitening(), "leave_out_last": True},
    # Its numbers.
    "steps twice as long": {"rule": Whitening(), "scale": 2.0},
    "steps three times as long": {"rule": Whitening(), "scale": 3.0},
    "3 nodes, a product less": {"rule": Corrected(nodes=3)},
    "the same, weight bounded by 3": {"rule": Corrected(nodes=3, reach=3.0)},
    "a straight line, three products less": {"rule": Corrected(nodes=2, linear=True)},
    "the same, eigenvalues up to 116 apart": {
        "rule": Corrected(nodes=2, linear=True, ridge=Corrected.ridge / 4)
    },
    "roots start at 0.1": {"rule": Corrected(start=0.1)},
    "roots start at 10": {"rule": Corrected(start=10.0)},
    "beta2 0.8": {"rule": Whitening(beta2=0.8)},
    "beta2 0.95": {"rule": Whitening(beta2=0.95)},
    "interval 1, beta2 0.99": {"rule": Whitening(0.99), "update_interval": 1},
    "interval 1": {"rule": Whitening(), "update_interval": 1},
    "interval 50": {"rule": Whitening(), "update_interval": 50},
    "interval 50, beta2 0.6": {"rule": Whitening(0.6), "update_interval": 50},
    "tiles of 128": {"rule": Whitening(), "tiling": Tiling(128)},
    "tiles of 1024": {"rule": Whitening(), "tiling": Tiling(1024)},
    "bfloat16 roots and momentum": {
        "rule": Whitening(),
        "root_dtype": "bfloat16",
        "accumulator_dtype": "bfloat16",
    },
    # Other leads.
    "then orthogonalized by two steps": {"rule": Corrected(orthogonalize=2)},
    "statistics, roots by 12 products": {"rule": Tracked()},
    "statistics, roots by 10 products": {"rule": Tracked(polynomials=POLYNOMIALS[10])},
    "statistics, roots by 7 products": {"rule": Tracked(polynomials=POLYNOMIALS[7])},
    "statistics, exact roots": {"rule": Tracked(ridge=1e-6)},
    "statistics of the shorter side alone": {"rule": Tracked(sides="shorter")},
    "statistics of the momentum": {"rule": Tracked(source="momentum")},
    "0.1.0's composite rule": {
        "rule": Tracked("gradient", 4, False, 0.95, normalize=False, early_refreshes=0)
    },
    "paper's rule": {"rule": BinomialSeries()},
    "paper's rule, on Nesterov's momentum": {
        "rule": BinomialSeries(preconditions="nesterov")
    },
    "paper's series, exponent -1/2, 20 early refreshes": {
        "rule": RootsOnly(),
        "update_interval": early(10, 20),
    },
    "paper's series, exponent -1/2, interval 2": {
        "rule": RootsOnly(),
        "update_interval": 2,
    },
    "paper's series, exponent -1/2, coupled, 20 early refreshes": {
        "rule": RootsOnly(factors=BEST_ROOT, coupled=True),
        "update_interval": early(10, 20),
    },
}


@functools.cache
def _problem(name: str):
    return PROBLEMS[name]()


def _all_but(left_out: tuple[str, ...]) -> Callable[[str, tuple], Any]:
    def view(path: str, shape: tuple) -> MatrixView | None:
        return None if set(left_out) & set(path.split("/")) else default_view(shape)

    return view


def run(name: str, options: dict[str, Any], seeds) -> Iterator[list]:
    """Trains with each seed in turn; returns the curves of the metric.

    Args:
      name: A problem of RATES.
      options: Of jorge, and the keys that VARIANTS has beside them.
      seeds: The seeds.
    """
    options, rate = {**options}, RATES[name]
    if name == "lm":
        config = from_adamw(
            adamw.schedule(rate),
            b2=adamw.B2,
            weight_decay=adamw.DECAY,
            leave_out=("embed", "position", "head"),
        )
        tiling = config.kwargs()["tiling"]
        if "tiling" in options:
            options["tiling"] = dataclasses.replace(
                tiling, max_dim=options["tiling"].max_dim
            )
        scale = options.pop("scale", 1.0)
        options["grafting"] = lengths.Adam(b2=adamw.B2, scale=scale)
        optimizer = jorge(**config.kwargs() | options)
        return (
            [value for _, value in language_model.train(optimizer, s, adamw.STEPS)]
            for s in seeds
        )
    problem = _problem(name)
    options["grafting"] = lengths.SGD(options.pop("scale", 1.0))
    if options.pop("leave_out_last", False):
        options["tiling"] = Tiling(view=_all_but(problem.adamw_leaves))
    train = trainer(
        problem,
        lambda rate: jorge(
            optax.cosine_decay_schedule(rate, problem.steps), 0.9, **options
        ),
        evaluations=20,
    )
    return (train(rate, seed) for seed in seeds)


def main() -> None:
    """Runs what the JSON lacks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--problems", nargs="*", default=list(RATES))
    arguments = parser.parse_args()
    for variant in arguments.variants or VARIANTS:
        for name in arguments.problems:
            known = {
                row["seed"]
                for row in results.rows("ablation")
                if (row["problem"], row["variant"]) == (name, variant)
            }
            seeds = [seed for seed in SEEDS if seed not in known]
            if not seeds:
                continue
            curves = run(name, VARIANTS[variant], seeds)
            new = [
                {
                    "problem": name,
                    "variant": variant,
                    "seed": seed,
                    "final": curve[-1],
                    "curve": curve,
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
