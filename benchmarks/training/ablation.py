"""Ablates the whitening rule: which of its changes matter, and what else was tried.

Question: the whitening rule differs from the paper's by its order, its exponent, the
coupling of the two sides, and more. What is each worth? How much do its numbers matter?
Method: single-shot in every row: on the MLP and the ResNet at the rate and length of
tuned SGD, on the transformer at the rate and length of tuned AdamW (embeddings and the
last layer left to Adam), refreshed every 10 steps unless the variant says otherwise.
Seeds 100 to 102, which no comparison of optimizers reports: choices are made here, and
evidence for them comes from other seeds. The same batches and first parameters for all
variants. The rows of PROTOTYPES, and of variants that are not named here, are of rules
that only the tag lab-0.1 (commit c40e72a) has.
Answer: docs/whitening.md, from benchmarks/results/ablation.json.

    python -m benchmarks.training.ablation [--problems mlp resnet lm] [VARIANT ...]

Runs that the JSON holds are not repeated.
"""

import argparse
import functools
from collections.abc import Iterator
from typing import Any

import optax

from benchmarks.harness import results
from benchmarks.problems import PROBLEMS, language_model
from benchmarks.problems.training import trainer
from benchmarks.training import adamw
from jorge_optax import (
    BinomialSeries,
    Numerics,
    Tiling,
    Whitening,
    from_adamw,
    jorge,
    lengths,
)

SEEDS = results.sized((100, 101, 102), (100,))
RATES = {"mlp": 0.1, "resnet": 0.2, "lm": 0.004}  # tuned SGD's and tuned AdamW's
RULE = "the rule"
# The rule without one of its parts, or with another number where it has no option.
PROTOTYPES = (
    "preconditions the gradient, averages after",
    "preconditions the momentum, not Nesterov's",
    "exponent -1/4",
    "sides not coupled",
    "exponent -1/4, not coupled",
    "all three",
    "forgets within 1,000 steps, beta2 0.99",
    "all four",
    "gradients of their own size",
    "eigenvalues up to 1000 apart",
    "corrected by the momentum",
    "roots start at 0.1",
    "roots start at 10",
)
# Options of jorge by variant, and those that `run` takes.
VARIANTS: dict[str, dict[str, Any]] = {
    RULE: {"rule": Whitening()},
    "no early refreshes": {"rule": Whitening(early_refreshes=0)},
    "20 early refreshes": {"rule": Whitening(early_refreshes=20)},
    "last layer left to SGD": {"rule": Whitening(), "leave_out_last": True},
    "steps twice as long": {"rule": Whitening(), "scale": 2.0},
    "steps three times as long": {"rule": Whitening(), "scale": 3.0},
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
        "numerics": Numerics(roots="bfloat16", momenta="bfloat16"),
    },
    "paper's rule": {"rule": BinomialSeries()},
}


@functools.cache
def _problem(name: str):
    return PROBLEMS[name]()


def run(name: str, options: dict[str, Any], seeds) -> Iterator[list]:
    """Trains with each seed in turn; returns the curves of the metric.

    Args:
      name: A problem of RATES.
      options: Of jorge, and the keys that VARIANTS has beside them.
      seeds: The seeds.
    """
    options, rate = {**options}, RATES[name]
    scale, leave_out_last = (
        options.pop(key, default)
        for key, default in (("scale", 1.0), ("leave_out_last", False))
    )
    if name == "lm":
        optimizer = from_adamw(
            adamw.schedule(rate),
            b2=adamw.B2,
            weight_decay=adamw.DECAY,
            grafting=lengths.Adam(b2=adamw.B2, scale=scale),
            **options,
        )
        return (
            [value for _, value in language_model.train(optimizer, s, adamw.STEPS)]
            for s in seeds
        )
    problem = _problem(name)
    options["grafting"] = lengths.SGD(scale)
    if leave_out_last:
        options["tiling"] = Tiling(leave_out=problem.adamw_leaves)
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
