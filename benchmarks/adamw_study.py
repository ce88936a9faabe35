"""Jorge from a tuned AdamW in one shot: does it train a language model better?

Question: with the hyperparameters that from_adamw derives from a tuned AdamW, does
Jorge reach AdamW's final validation loss sooner, and end lower?
Method: a two-layer transformer on bytes of the Python standard library, cosine schedule
with warm-up, 600 steps. AdamW's learning rate is the best of four by the final
validation loss of one seed (not used again). Then three other seeds of AdamW at that
rate and of Jorge with from_adamw, untouched; with the embeddings left to Adam, too. The
target is the mean final validation loss of AdamW.
Answer: docs/from_adamw.md, from benchmarks/results/adamw_study.json.

    python -m benchmarks.adamw_study
"""

import numpy as np
import optax

from benchmarks import language_model, results
from jorge_optax import Tiling, default_view, from_adamw

STEPS, DECAY, B2 = 600, 0.1, 0.95
RATES = (1e-3, 2e-3, 4e-3, 8e-3)
TUNING_SEED, SEEDS = 100, (0, 1, 2)


def schedule(rate: float) -> optax.Schedule:
    """Warm-up, then cosine to a tenth."""
    return optax.warmup_cosine_decay_schedule(0.0, rate, 50, STEPS, 0.1 * rate)


def adamw(rate: float):
    """The baseline."""
    return optax.adamw(schedule(rate), b2=B2, weight_decay=DECAY)


def without_embeddings(path: str, shape: tuple[int, ...]):
    """A view that leaves embedding and position to Adam."""
    return None if path in ("embedding", "position") else default_view(shape)


def variants(rate: float) -> dict:
    """Name to optimizer."""
    config = from_adamw(schedule(rate), b2=B2, weight_decay=DECAY)
    left_out = Tiling(view=without_embeddings)
    often = config.replace(update_interval=2)
    return {
        "adamw": adamw(rate),
        "jorge": config.optimizer(),
        "jorge, embeddings left to Adam": config.optimizer(tiling=left_out),
        "jorge, interval 2": often.optimizer(),
    }


def main() -> None:
    """Tunes AdamW, runs all and writes the JSON."""
    tuning = {}
    for rate in RATES:
        curve = language_model.train(adamw(rate), TUNING_SEED, STEPS)
        tuning[rate] = curve[-1][1]
        print("adamw", rate, curve[-1], flush=True)
    best = min(tuning, key=tuning.__getitem__)
    rows = []
    for name, optimizer in variants(best).items():
        for seed in SEEDS:
            curve = language_model.train(optimizer, seed, STEPS)
            rows.append({"variant": name, "seed": seed, "curve": curve})
            print(name, seed, curve[-1], flush=True)
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
