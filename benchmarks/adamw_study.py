"""Jorge from a tuned AdamW in one shot: does it train a language model better?

Question: with the hyperparameters that from_adamw derives from a tuned AdamW, does
Jorge reach AdamW's final validation loss sooner, and end lower?
Method: a two-layer transformer on bytes of the Python standard library, cosine schedule
with warm-up, 600 steps. AdamW's learning rate is the best of four by the final
validation loss of one seed (not used again). Then three other seeds of AdamW at that
rate and of Jorge with from_adamw, untouched; also with a refresh at every step, and
with the embeddings preconditioned. The target is the mean final validation loss of
AdamW. That embeddings are left to Adam by default was decided on the tuning seed.
Answer: docs/from_adamw.md, from benchmarks/results/adamw_study.json.

    python -m benchmarks.adamw_study
"""

import concurrent.futures
import multiprocessing

import numpy as np
import optax

from benchmarks import language_model, results
from jorge_optax import from_adamw

STEPS, DECAY, B2 = results.sized(600, 60), 0.1, 0.95
RATES = results.sized((1e-3, 2e-3, 4e-3, 8e-3), (2e-3,))
TUNING_SEED, SEEDS = 100, results.sized((0, 1, 2), (0,))


def schedule(rate: float) -> optax.Schedule:
    """Warm-up, then cosine to a tenth."""
    return optax.warmup_cosine_decay_schedule(0.0, rate, 50, STEPS, 0.1 * rate)


def adamw(rate: float):
    """The baseline."""
    return optax.adamw(schedule(rate), b2=B2, weight_decay=DECAY)


VARIANTS = {
    "jorge": {},
    "jorge, refresh at every step": {"update_interval": 1},
    "jorge, embeddings preconditioned": {"leave_out": ()},
}


def run(task: tuple[str, float, int]) -> list[tuple[int, float]]:
    """Validation losses of one variant, at a learning rate, with a seed."""
    variant, rate, seed = task
    if variant == "adamw":
        optimizer = adamw(rate)
    else:
        options = VARIANTS[variant]
        config = from_adamw(schedule(rate), b2=B2, weight_decay=DECAY, **options)
        optimizer = config.optimizer()
    curve = language_model.train(optimizer, seed, STEPS)
    print(variant, rate, seed, curve[-1], flush=True)
    return curve


def main() -> None:
    """Tunes AdamW, runs all, two at a time, and writes the JSON."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
        tuning_tasks = [("adamw", rate, TUNING_SEED) for rate in RATES]
        finals = [curve[-1][1] for curve in pool.map(run, tuning_tasks)]
        tuning = dict(zip(RATES, finals, strict=True))
        best = min(tuning, key=tuning.__getitem__)
        tasks = [(name, best, s) for name in ("adamw", *VARIANTS) for s in SEEDS]
        curves = list(pool.map(run, tasks))
    rows = [
        {"variant": variant, "seed": seed, "curve": curve}
        for (variant, _, seed), curve in zip(tasks, curves, strict=True)
    ]
    target = float(
        np.mean([row["curve"][-1][1] for row in rows if row["variant"] == "adamw"])
    )
    for row in rows:
        reached = [step for step, value in row["curve"] if value <= target]
        row["steps_to_target"] = reached[0] if reached else None
    results.write(
        "adamw_study",
        rows,
        seeds=list(SEEDS),
        steps=STEPS,
        learning_rate=best,
        tuning={str(rate): value for rate, value in tuning.items()},
        target=target,
    )


if __name__ == "__main__":
    main()
