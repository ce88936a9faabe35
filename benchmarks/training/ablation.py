"""Ablates the whitening rule: which of its changes matter, and what else was tried.

Question: the whitening rule differs from 0.1.0's rule with statistics by six changes.
What is each worth, singly and together? Do cheaper or stronger variants exist?
Method: one configurable rule, ``Ablated``, that plugs into ``jorge`` by the ``Rule``
protocol, with roots by the package's polynomials, and the rules of other leads
(benchmarks/training/prototypes.py). Single-shot in every row: on the MLP and the
ResNet at the rate and length of tuned SGD, on the transformer at the rate and length of
tuned AdamW, refreshed every 10 steps unless the variant says otherwise. Seeds 100 to
102 (on the transformer 100 alone), which no comparison of optimizers reports: choices
are made here, and evidence for them comes from other seeds. The same batches and first
parameters for all variants.
Answer: docs/whitening.md, from benchmarks/results/ablation.json.

    python -m benchmarks.training.ablation [--problems mlp resnet lm] [VARIANT ...]

Runs that the JSON holds are not repeated.
"""

import argparse
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax

from benchmarks.harness import results
from benchmarks.problems import PROBLEMS, language_model
from benchmarks.problems.training import trainer
from benchmarks.training import adamw
from benchmarks.training.prototypes import Ablated, RootsOnly, SelfCorrecting
from jorge_optax import BinomialSeries, Tiling, Whitening, from_adamw, jorge

SEEDS = {
    "mlp": results.sized((100, 101, 102), (100,)),
    "resnet": results.sized((100, 101, 102), (100,)),
    "lm": (100,),
}
RATES = {"mlp": 0.1, "resnet": 0.2, "lm": 0.004}  # tuned SGD's and tuned AdamW's
# The best of their degrees, by the number of products; benchmarks/numerics/design.py.
POLYNOMIALS = {
    7: (  # degrees 4, 4: eigenvalues from 1e-3, error 6%
        (7.18192, -63.87731, 206.39227, -261.51312, 112.81624),
        (5.30532, -25.29241, 62.65818, -68.63244, 27.02137),
    ),
    9: (  # degrees 2, 2, 2: from 1e-3, 3%
        (4.13045, -11.60358, 8.47313),
        (3.73651, -8.74552, 6.00901),
        (2.76548, -3.57486, 1.84062),
    ),
    10: (  # degrees 4, 4, 1: from 3e-4, 3%
        (7.37548, -68.75876, 225.4643, -287.74784, 124.66682),
        (5.96886, -38.45084, 110.21313, -131.26313, 54.53198),
        (1.81765, -0.84422),
    ),
}
BFLOAT16 = {"root_dtype": "bfloat16", "accumulator_dtype": "bfloat16"}


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
    **{
        f"{n} products": {"rule": without(polynomials=p)}
        for n, p in POLYNOMIALS.items()
    },
    "one side": {"rule": without(sides="shorter", coupled=True)},
    "bfloat16 roots and momentum": {"rule": Whitening(), **BFLOAT16},
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
        evaluations=20,
    )
    return [train(rate, seed) for seed in seeds]


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
            seeds = [seed for seed in SEEDS[name] if seed not in known]
            if not seeds:
                continue
            curves = run(name, variant, seeds)
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
