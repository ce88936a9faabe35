"""Repeats headline rows of lab-0.1 with the package as it is.

Question: does the rewritten package train as lab-0.1 did?
Method: the byte transformer (from_adamw, and the paper's rule) and the small ResNet
(SGD's settings by both rules, and steps by shape at the default rate), the seeds 0 to 2
of the recorded rows, at the recorded rates, and nothing else changed. Trajectories of
two programs part by rounding within tens of steps, so a seed's difference is noise of
about the spread between seeds; the mean is what to compare.
Answer: docs/results/training.md, from benchmarks/results/repeated.json.

    python -m benchmarks.training.repeat

Runs what the JSON lacks. Needs CIFAR10, as training.comparison does.
"""

import statistics
from typing import Any

from benchmarks.harness import results
from benchmarks.problems import PROBLEMS, language_model
from benchmarks.training import adamw, comparison

SEEDS = results.sized((0, 1, 2), (0,))
TRANSFORMER = ("jorge, whitening", "jorge")
RESNET = ("whitening@10/sgd-rate", "paper@10/sgd-rate", "by-shape@10/default")


def recorded(file: str, **key: Any) -> float:
    """Returns the recorded end of a run of lab-0.1."""
    (row,) = (row for row in results.rows(file) if key.items() <= row.items())
    return row["final"] if "final" in row else row["curve"][-1][1]


def repeat(problem: str, name: str, seed: int) -> dict[str, Any]:
    """Trains once, as a recorded run was trained."""
    if problem == "transformer":
        rate = adamw.Study().rate(name)
        optimizer = adamw.optimizer_of(name, rate, rate)
        end = language_model.train(optimizer, seed, adamw.STEPS)[-1][1]
        before = recorded("adamw_study", stage="final", variant=name, seed=seed)
    else:
        study = comparison.Study(PROBLEMS["resnet"]())
        rate = study.rate(name)
        end = study.train(name, rate, seed, evaluations=4)[-1]
        before = recorded("training_resnet", stage="final", optimizer=name, seed=seed)
    return {"learning_rate": rate, "before": before, "final": end}


def main() -> None:
    """Runs what the JSON lacks, and prints means."""
    cases = [("transformer", name) for name in TRANSFORMER]
    cases += [("resnet", name) for name in RESNET]
    for seed in SEEDS:
        for problem, name in cases:
            key = {"problem": problem, "optimizer": name, "seed": seed}
            done = results.rows("repeated")
            if any(key.items() <= row.items() for row in done):
                continue
            row = {**key, **repeat(problem, name, seed)}
            print(*row.values(), flush=True)
            with results.lock():
                results.write("repeated", [*results.rows("repeated"), row])
    for problem, name in cases:
        rows = [row for row in results.rows("repeated") if row["optimizer"] == name]
        before, after = (
            statistics.mean(row[field] for row in rows) for field in ("before", "final")
        )
        print(f"{problem}, {name}: lab-0.1 {before:.4f}, now {after:.4f}")


if __name__ == "__main__":
    main()
