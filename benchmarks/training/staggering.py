"""Measures what staggered refreshes and TF32 products change in training.

Question: with staggered refreshes the roots of a stack are of different ages, and with
TF32 products they are applied with 11 bits. Does either train worse?
Method: the whitening rule at interval 10, with steps twice as long as the baseline's,
as from_sgd and from_adamw have it, on the problems and at the rates of ablation.py,
which has run some of the seeds of all at once already ("steps twice as long").
Products in TF32 are emulated: their inputs are rounded to 11 bits, sums are not. The
same batches and first parameters for all variants of a seed. "Worse beyond the spread"
means: worse than all at once by more on average than the largest difference between two
seeds of all at once.
Answer: docs/which_rule.md, from benchmarks/results/staggering.json.

    python -m benchmarks.training.staggering [--problems mlp resnet lm] [VARIANT ...]

Runs that the JSON holds are not repeated. Needs Fashion-MNIST and CIFAR-10, as
benchmarks/README.md says.
"""

import argparse
import dataclasses
from typing import Any

import jax

from benchmarks.harness import results
from benchmarks.numerics.arithmetic import with_products_in
from benchmarks.training import ablation
from jorge_optax import Whitening

PROBLEMS = ("mlp", "resnet", "lm")
SEEDS = results.sized((100, 101, 102), (100,))
ALL_AT_ONCE = "all at once"


@dataclasses.dataclass(frozen=True)
class Rounded(Whitening):
    """The whitening rule with emulated TF32 products.

    Attributes:
      refreshes: whether those of a refresh are rounded, too.
    """

    refreshes: bool = False

    def precondition(self, kept, matrices, *, precision):
        """Rounds the inputs of all products."""

        def apply(kept, matrices):
            return Whitening.precondition(self, kept, matrices, precision=precision)

        return with_products_in("tf32", apply)(kept, matrices)

    def refresh(self, kept, gradients, momenta, *, damping, precision):
        """Rounds the inputs of all products if ``refreshes`` says so."""
        if self.refreshes:
            precision = jax.lax.Precision.HIGH  # as far as the rule asks for it

        def refresh(kept, gradients):
            return Whitening.refresh(
                self, kept, gradients, None, damping=damping, precision=precision
            )

        del momenta
        arithmetic = "tf32" if self.refreshes else "float32"
        return with_products_in(arithmetic, refresh)(kept, gradients)


VARIANTS: dict[str, dict[str, Any]] = {
    ALL_AT_ONCE: {"rule": Whitening()},
    "staggered": {"rule": Whitening(), "stagger": True},
    "preconditioned in TF32": {"rule": Rounded()},
    "preconditioned and refreshed in TF32": {"rule": Rounded(refreshes=True)},
}


def rows_of(name: str, variant: str) -> list[dict[str, Any]]:
    """Returns the runs of a variant; of all at once also those of the ablation."""
    names = {("staggering", variant)}
    if variant == ALL_AT_ONCE:
        names.add(("ablation", "steps twice as long"))
    return [
        row
        for file, known in sorted(names)
        for row in results.rows(file)
        if (row["problem"], row["variant"]) == (name, known)
    ]


def main() -> None:
    """Runs what the JSON lacks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS))
    arguments = parser.parse_args()
    for name in arguments.problems:
        for variant in arguments.variants or VARIANTS:
            known = {row["seed"] for row in rows_of(name, variant)}
            seeds = sorted(set(SEEDS) - known)
            if not seeds:
                continue
            options = {**VARIANTS[variant], "scale": 2.0}
            curves = ablation.run(name, options, seeds)
            for seed, curve in zip(seeds, curves, strict=True):
                row = {"problem": name, "variant": variant, "seed": seed}
                row |= {"final": curve[-1], "curve": curve}
                print(name, variant, seed, curve[-1], flush=True)
                with results.lock():
                    rows = [*results.rows("staggering"), row]
                    results.write("staggering", rows, rates=ablation.RATES)


if __name__ == "__main__":
    main()
