"""Compares single-shot Jorge with a tuned AdamW, and tuned peers, on a language model.

Question: with the hyperparameters that from_adamw derives from a tuned AdamW, does
Jorge reach AdamW's final validation loss sooner, and end lower? How do both compare
with tuned peers?
Method: a two-layer transformer on bytes of the Python standard library, cosine schedule
with warm-up, 600 steps. The learning rate of each tuned optimizer is the best of four,
a factor 2 to 2.5 apart, by the final validation loss of one seed (not used again); SGD
and SOAP have a fifth, since their best was at the edge. Then other seeds of AdamW at
that rate and of Jorge with from_adamw, untouched, by each rule; with the paper's rule
also with a refresh at every step and with the embeddings preconditioned, with whitening
also with the last layer preconditioned, with steps as long as Adam's in place of twice
as long, and with tiles of up to 1024 x 1024, which are whole layers, in place of
256 x 256.
That embeddings and the last layer are left to Adam by default was decided on the tuning
seed. "muon" has AdamW's rate, too, and steps of a root mean square of 0.2, which is
usual to carry AdamW's rate over; embeddings and the last layer get AdamW at its own
tuned rate, also where Muon's rate is tuned. Jorge by whitening leaves both to Adam, by
the paper's rule embeddings alone, as SOAP, KL-Shampoo and Shampoo do; SOAP also runs
with the last layer left to Adam, at the same rate. Shampoo has exact roots and, like
Jorge by the paper's rule, Adam's length. By shape, and with SGD, the decay is such that
its product with the rate is AdamW's.
Answer: docs/from_adamw.md, from benchmarks/results/adamw_study.json.

    python -m benchmarks.training.adamw [--tune FAMILY ...] [--final VARIANT ...]

Without arguments all is run that the JSON lacks: delete it to measure all again.
"""

import argparse
import functools
from typing import Any

import jax
import optax
from optax import contrib

from benchmarks.baselines.kl_shampoo import scale_by_kl_shampoo
from benchmarks.baselines.matrices import decay_after, with_adam
from benchmarks.baselines.psgd import psgd
from benchmarks.baselines.soap import scale_by_soap
from benchmarks.cost import counts
from benchmarks.harness import rates, results
from benchmarks.problems import language_model
from examples.language_model.configs import hidden_matrices
from examples.shared.shampoo import Shampoo
from jorge_optax import (
    BinomialSeries,
    Tiling,
    Whitening,
    from_adamw,
    jorge,
    lengths,
    views,
)

STEPS, DECAY, B1, B2 = results.sized(600, 60), 0.1, 0.9, 0.95
TUNING_SEED, SEEDS = 100, results.sized((0, 1, 2, 3, 4), (0,))
RATES = {  # tried for each tuned optimizer
    "sgd": (0.025, 0.05, 0.1, 0.2, 0.4),
    "adamw": (1e-3, 2e-3, 4e-3, 8e-3),
    "muon, tuned": (2e-3, 4e-3, 8e-3, 1.6e-2),
    "soap": (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
    "kl-shampoo": (2e-3, 4e-3, 8e-3, 1.6e-2),
    "psgd": (5e-4, 1e-3, 2e-3, 4e-3),
    "shampoo": (1e-3, 2e-3, 4e-3, 8e-3),
    "jorge, whitening, tuned": (2e-3, 4e-3, 8e-3, 1.6e-2),
    "jorge, by shape, tuned": (1e-2, 2e-2, 5e-2, 1e-1),
}
LEAVE_OUT = ("embed", "position")
EMBEDDINGS = views.only(*LEAVE_OUT)  # and not the last layer
LAST_LEFT = ", last layer left to Adam"  # of SOAP, which else preconditions it


def schedule(rate: float) -> optax.Schedule:
    """Returns a schedule: warm-up, then a cosine to a tenth."""
    return optax.warmup_cosine_decay_schedule(0.0, rate, 50, STEPS, 0.1 * rate)


def adamw(rate: float):
    """Returns the baseline."""
    return optax.adamw(schedule(rate), b2=B2, weight_decay=DECAY)


PAPER = BinomialSeries()
VARIANTS: dict[str, dict[str, Any]] = {
    "jorge": {"rule": PAPER, "leave_out": EMBEDDINGS},
    "jorge, refresh at every step": {
        "rule": PAPER,
        "leave_out": EMBEDDINGS,
        "update_interval": 1,
    },
    "jorge, embeddings preconditioned": {"rule": PAPER, "leave_out": views.only()},
    "jorge, whitening": {},
    "jorge, whitening, Adam's own length": {"grafting": lengths.Adam(b2=B2)},
    "jorge, whitening, whole layers": {"tiling": Tiling(1024)},
    "jorge, whitening, last layer preconditioned": {"leave_out": EMBEDDINGS},
    "shampoo": {"rule": Shampoo(), "leave_out": EMBEDDINGS},
}


def muon(rate: float, adam_rate: float) -> optax.GradientTransformation:
    """Returns Muon, with AdamW for all that are no hidden layers."""
    return contrib.muon(
        schedule(rate),
        beta=0.95,
        weight_decay=DECAY,
        adam_b1=B1,
        adam_b2=B2,
        adam_weight_decay=DECAY,
        adam_learning_rate=schedule(adam_rate),
        muon_weight_dimension_numbers=hidden_matrices,
        consistent_rms=0.2,
    )


def optimizer_of(
    variant: str, rate: float, adam_rate: float
) -> optax.GradientTransformation:
    """Returns the optimizer of a variant.

    Args:
      variant: a name of RATES, of VARIANTS, or "muon".
      rate: the learning rate.
      adam_rate: AdamW's tuned one.

    Returns:
      The optimizer.
    """
    if variant == "adamw":
        return adamw(rate)
    if variant == "sgd":
        decay = decay_after(DECAY * adam_rate / rate, schedule(rate))
        return optax.chain(optax.sgd(schedule(rate), B1), decay)
    if variant.startswith("muon"):
        return muon(rate, adam_rate)
    if variant == "psgd":
        decay = decay_after(DECAY, schedule(rate))
        return optax.chain(psgd(schedule(rate), B1), decay)
    if variant.startswith(("soap", "kl-shampoo")):
        make = scale_by_soap if variant.startswith("soap") else scale_by_kl_shampoo
        options: dict[str, Any] = dict(b1=B1, b2=B2, weight_decay=DECAY)
        leave_out = LEAVE_OUT + ("head",) * variant.endswith(LAST_LEFT)
        return with_adam(make(B1), schedule(rate), leave_out=leave_out, **options)
    if variant.startswith("jorge, by shape"):
        return jorge(
            schedule(rate),
            B1,
            DECAY * adam_rate / rate,
            rule=Whitening(),
            grafting=lengths.Shape(),
            tiling=Tiling(leave_out=(*LEAVE_OUT, "head")),
        )
    options = VARIANTS[variant.removesuffix(", tuned")]
    return from_adamw(schedule(rate), b2=B2, weight_decay=DECAY, **options)


class Study:
    """The runs of the study, kept in its JSON."""

    def run(self, stage: str, variant: str, rate: float, seed: int) -> None:
        """Trains once, unless the JSON has the run."""
        key = dict(stage=stage, variant=variant, learning_rate=rate, seed=seed)
        if any(key.items() <= row.items() for row in results.rows("adamw_study")):
            return
        adam_rate = rate if variant == "adamw" else self.best("adamw")
        optimizer = optimizer_of(variant, rate, adam_rate)
        curve = language_model.train(optimizer, seed, STEPS)
        print(*key.values(), curve[-1][1], flush=True)
        row = {**key, "curve": curve, "state_bytes": state_bytes(variant)}
        with results.lock():
            rows = [*results.rows("adamw_study"), row]
            results.write("adamw_study", rows, steps=STEPS, tuning_seed=TUNING_SEED)

    def tune(self, names: list[str]) -> None:
        """Runs each family at its rates, on the tuning seed."""
        for name in names:
            for rate in RATES[name]:
                self.run("tune", name, rate, TUNING_SEED)

    def best(self, name: str) -> float:
        """Returns the learning rate with the lowest loss at the end."""
        runs = [
            row
            for row in results.rows("adamw_study")
            if (row["stage"], row["variant"]) == ("tune", name)
        ]
        return min(runs, key=lambda row: row["curve"][-1][1])["learning_rate"]

    def rate(self, variant: str) -> float:
        """Returns the rate of a variant: its family's, the default or AdamW's."""
        variant = variant.removesuffix(LAST_LEFT)
        if variant == "jorge, by shape":
            return rates.BY_SHAPE
        return self.best(variant if variant in RATES else "adamw")

    def final(self, names: list[str]) -> None:
        """Runs seed by seed."""
        for seed in SEEDS:
            for name in names:
                self.run("final", name, self.rate(name), seed)


@functools.cache
def state_bytes(variant: str) -> int:
    """Returns the bytes that init would allocate."""
    params = jax.eval_shape(lambda: language_model.init(0))
    optimizer = optimizer_of(variant, 1e-3, 1e-3)
    return counts.tree_bytes(jax.eval_shape(optimizer.init, params))


def main() -> None:
    """Tunes and runs what the JSON lacks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tune", nargs="*", metavar="FAMILY")
    parser.add_argument("--final", nargs="*", metavar="VARIANT")
    arguments = parser.parse_args()
    study, both = Study(), arguments.tune is None and arguments.final is None
    if both or arguments.tune is not None:
        study.tune(arguments.tune or list(RATES))
    if both or arguments.final is not None:
        peers = ("muon", f"soap{LAST_LEFT}")
        every = (*RATES, *peers, *VARIANTS, "jorge, by shape")
        study.final(arguments.final or list(every))


if __name__ == "__main__":
    main()
