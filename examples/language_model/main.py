"""The demo: a small transformer with AdamW, Muon and Jorge, offline, in minutes.

python -m examples.language_model.main                   three seeds; writes demo.png
python -m examples.language_model.main --quick           one seed of 20 steps
python -m examples.language_model.main --seeds 3 4 5     other seeds
"""

import argparse
import dataclasses
import json
import pathlib
import platform

import jax

from examples.language_model import report
from examples.language_model.configs import NOTE, OPTIMIZERS, Config
from examples.language_model.train import Trainer
from examples.shared.clock import clock
from examples.shared.run_folder import write_whole


def compare(
    config: Config, names: list[str], seeds: list[int], file: pathlib.Path
) -> report.Runs:
    """Trains each optimizer with each seed, but not again what the file has."""
    settings = {
        **dataclasses.asdict(config),
        "python": platform.python_version(),  # whose sources the data are
        "jax": jax.__version__,
    }
    kept = json.loads(file.read_text()) if file.exists() else {}
    done = kept.get("runs", {}) if kept.get("settings") == settings else {}
    for name in names:
        trainer = None
        for seed in seeds:
            key = f"{name}-{seed}"
            if key not in done:
                if trainer is None:
                    with clock(f"{name}: compiling"):
                        trainer = Trainer(config, OPTIMIZERS[name](config))
                done[key] = trainer.train(seed)
                file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(file, json.dumps({"settings": settings, "runs": done}))
            print(f"{name}, seed {seed}: loss {done[key][-1][1]:.3f}", flush=True)
    return {name: [done[f"{name}-{seed}"] for seed in seeds] for name in names}


def main() -> None:
    """Reads the flags, compares, and shows the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--seeds", nargs="+", type=int, default=[0, 1, 2], help="a run for each")
    add("--quick", action="store_true", help="one seed of 20 steps, to try it out")
    add("--figure", type=pathlib.Path, default=pathlib.Path("demo.png"))
    add("--out", type=pathlib.Path, default=pathlib.Path("runs/language_model"))
    args = parser.parse_args()
    config, seeds = Config(), args.seeds
    if args.quick:
        config, seeds = dataclasses.replace(config, steps=20, warmup=5), seeds[:1]
    file = args.out / ("quick.json" if args.quick else "curves.json")
    runs = compare(config, list(OPTIMIZERS), seeds, file)
    print(f"\n{report.table(runs)}\n\n{report.margins(runs)}\n\n{NOTE}\n")
    report.figure(runs).savefig(args.figure, dpi=130)
    print(f"Wrote {args.figure}; {file} has the curves.")


if __name__ == "__main__":
    main()
