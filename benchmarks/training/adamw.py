"""Compares single-shot Jorge with a tuned AdamW on a language model.

Question: with the hyperparameters that from_adamw derives from a tuned AdamW, does
Jorge reach AdamW's final validation loss sooner, and end lower?
Method: a two-layer transformer on bytes of the Python standard library, cosine schedule
with warm-up, 600 steps. AdamW's learning rate is the best of four by the final
validation loss of one seed (not used again). Then three other seeds of AdamW at that
rate and of Jorge with from_adamw, untouched, by each rule; with the paper's rule also
with a refresh at every step and with the embeddings preconditioned, with whitening also
with the last layer left to Adam. That embeddings are left to Adam by default was
decided on the tuning seed. Muon has AdamW's rate, too, and steps of a root mean square
of 0.2, which is usual to carry AdamW's rate over; embeddings and the last layer get
AdamW.
Answer: docs/from_adamw.md, from benchmarks/results/adamw_study.json.

    python -m benchmarks.training.adamw

Runs that the JSON has are not repeated: delete it to measure all again.
"""

import concurrent.futures
import functools
import multiprocessing

import jax
import optax
from optax import contrib

from benchmarks.cost import counts
from benchmarks.harness import results
from benchmarks.problems import language_model
from jorge_optax import BinomialSeries, Whitening, from_adamw

STEPS, DECAY, B2 = results.sized(600, 60), 0.1, 0.95
RATES = results.sized((1e-3, 2e-3, 4e-3, 8e-3), (2e-3,))
TUNING_SEED, SEEDS = 100, results.sized((0, 1, 2), (0,))


def schedule(rate: float) -> optax.Schedule:
    """Returns a schedule: warm-up, then a cosine to a tenth."""
    return optax.warmup_cosine_decay_schedule(0.0, rate, 50, STEPS, 0.1 * rate)


def adamw(rate: float):
    """Returns the baseline."""
    return optax.adamw(schedule(rate), b2=B2, weight_decay=DECAY)


PAPER = BinomialSeries()
VARIANTS = {
    "jorge": {"rule": PAPER},
    "jorge, refresh at every step": {"rule": PAPER, "update_interval": 1},
    "jorge, embeddings preconditioned": {"rule": PAPER, "leave_out": ()},
    "jorge, whitening": {"rule": Whitening()},
    "jorge, whitening, last layer left to Adam": {
        "rule": Whitening(),
        "leave_out": ("embed", "position", "head"),
    },
}


def muon(rate: float) -> optax.GradientTransformation:
    """Returns Muon at AdamW's rate, with AdamW for all that are no hidden layers."""

    def dimensions(params):
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: (
                contrib.MuonDimensionNumbers(0, 1)
                if leaf.ndim == 2 and "blocks" in jax.tree_util.keystr(path)
                else None
            ),
            params,
        )

    return contrib.muon(
        schedule(rate),
        beta=0.95,
        weight_decay=DECAY,
        adam_b1=0.9,
        adam_b2=B2,
        adam_weight_decay=DECAY,
        adam_learning_rate=schedule(rate),
        muon_weight_dimension_numbers=dimensions,
        consistent_rms=0.2,
    )


def optimizer_of(variant: str, rate: float) -> optax.GradientTransformation:
    """Returns AdamW, Muon, or Jorge by from_adamw."""
    if variant == "adamw":
        return adamw(rate)
    if variant == "muon":
        return muon(rate)
    options = VARIANTS[variant]
    return from_adamw(schedule(rate), b2=B2, weight_decay=DECAY, **options).optimizer()


def run(task: tuple[str, float, int]) -> list[tuple[int, float]]:
    """Trains one variant; returns its validation losses."""
    variant, rate, seed = task
    curve = language_model.train(optimizer_of(variant, rate), seed, STEPS)
    print(variant, rate, seed, curve[-1], flush=True)
    return curve


@functools.cache
def state_bytes(variant: str) -> int:
    """Returns the bytes that init would allocate."""
    params = jax.eval_shape(lambda: language_model.init(0))
    return counts.tree_bytes(jax.eval_shape(optimizer_of(variant, 1e-3).init, params))


def main() -> None:
    """Tunes AdamW and runs what the JSON lacks, two at a time."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
        try:
            tuning = results.read("adamw_study")["provenance"]["tuning"]
        except FileNotFoundError:
            tasks = [("adamw", rate, TUNING_SEED) for rate in RATES]
            finals = [curve[-1][1] for curve in pool.map(run, tasks)]
            tuning = dict(zip(map(str, RATES), finals, strict=True))
        best = float(min(tuning, key=tuning.__getitem__))
        rows = results.rows("adamw_study")
        known = {(row["variant"], row["seed"]) for row in rows}
        tasks = [
            (name, best, s) for name in ("adamw", "muon", *VARIANTS) for s in SEEDS
        ]
        tasks = [task for task in tasks if (task[0], task[2]) not in known]
        for (variant, _, seed), curve in zip(tasks, pool.map(run, tasks), strict=True):
            size = state_bytes(variant)
            row = dict(variant=variant, seed=seed, curve=curve, state_bytes=size)
            rows.append(row)
            facts = dict(steps=STEPS, learning_rate=best, tuning=tuning)
            results.write("adamw_study", rows, **facts)


if __name__ == "__main__":
    main()
