"""Runs all studies, one after the other.

    python -m benchmarks.run_all [NAME ...]           # hours
    python -m benchmarks.run_all --smoke [NAME ...]   # minutes

A study whose data or packages are not there is skipped, and says what to do; one that
fails does not stop the others. What a study prints goes to runs/bench/. If interrupted,
the next call goes on with the studies that are not done; those that train keep each run
in their JSON, and run only what it lacks: to have it all anew, delete the file.

A smoke run takes one seed and a few steps of each study, into a temporary folder. With
names, only studies whose command contains one of them run.
"""

import argparse
import functools
import importlib.util
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from tqdm import tqdm

from benchmarks import machine
from examples.shared import files

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / "runs" / "bench"


class Study(NamedTuple):
    """One process.

    Attributes:
      command: module in benchmarks, and its arguments.
      minutes: roughly, on two cores.
      needs: names of what must be there, as :func:`missing` knows them.
      smoke: further arguments in a smoke run.
      smoke_needs: what must be there for that; None for the same.
    """

    command: str
    minutes: int
    needs: tuple[str, ...] = ()
    smoke: str = ""
    smoke_needs: tuple[str, ...] | None = None


FASHION, CIFAR, PSGD, CUDA = "Fashion-MNIST", "CIFAR-10", "psgd-jax", "CUDA plugin"
STUDIES = (
    Study("scaling_study", 10),
    Study("gpu_compile", 20, (CUDA,)),
    Study("gpu_depth", 5, (CUDA,)),
    Study("step_cost", 60, (PSGD,), smoke_needs=()),
    Study("rule_cost", 1),
    Study("memory_study", 40, (FASHION, CIFAR), "mlp", (FASHION,)),
    Study("refresh_bias", 5),
    # These record gradients of all problems; a smoke run, of one that needs no data.
    Study("numerics.terms", 10, (FASHION, CIFAR), smoke_needs=()),
    Study("numerics.accuracy", 20, (FASHION, CIFAR), smoke_needs=()),
    Study("numerics.endurance", 20, (FASHION, CIFAR), smoke_needs=()),
    Study("start_study", 10, (FASHION,)),
    Study("tiles_study", 20, (FASHION,)),
    Study("interval_study", 10, (FASHION,)),
    Study("adamw_study", 40),
    *(
        Study(f"training_study {problem} {stage}", minutes, (data, PSGD), only, (data,))
        for problem, data, stage, minutes, only in (
            ("mlp", FASHION, "--tune", 20, "--only sgd adamw muon shampoo"),
            ("mlp", FASHION, "--final", 30, "--only sgd muon composite@10/sgd-rate"),
            ("autoencoder", FASHION, "--tune", 20, "--only sgd adamw shampoo"),
            ("autoencoder", FASHION, "--final", 30, "--only sgd"),
            ("autoencoder", FASHION, "--range", 30, "--only composite"),
            ("resnet", CIFAR, "--tune", 40, "--only sgd adamw"),
            ("resnet", CIFAR, "--final", 60, "--only sgd"),
        )
    ),
    Study("problem_costs", 5, (FASHION, CIFAR, PSGD), smoke_needs=()),
    # These take AdamW's rate from the ones before.
    Study("length_study mlp", 30, (FASHION,), "'muon, shape' 'jorge, adam'"),
    Study("length_study autoencoder", 30, (FASHION,), "'composite, own'"),
    Study("length_study resnet", 60, (CIFAR,), "'shampoo, sgd'"),
    Study("workloads classification --tune", 60, (CIFAR,)),
    Study("workloads classification --final", 120, (CIFAR,), "sgd jorge"),
    Study("workloads classification --short", 20, (CIFAR,)),
    Study("workloads segmentation --tune", 60),
    Study("workloads segmentation --final", 120, (), "sgd jorge-composite"),
    Study("workloads segmentation --short", 20),
)


@functools.cache
def missing(need: str) -> str | None:
    """What to do about something that is not there; None if it is."""
    readers = {FASHION: files.read_fashion_mnist, CIFAR: files.read_cifar10}
    if need in readers:
        try:
            readers[need]("test")
        except (FileNotFoundError, ValueError) as error:
            return str(error)
        return None
    module, remedy = {
        PSGD: ("psgd_jax", "psgd-jax is missing: pip install psgd-jax==0.2.9"),
        CUDA: (
            "jax_cuda12_plugin",
            "jax's plugin for CUDA is missing: install the extra `gpu`, with the "
            "plugin of jax's own version.",
        ),
    }[need]
    return None if importlib.util.find_spec(module) else remedy


def run(study: Study, folder: pathlib.Path, smoke: bool) -> str | None:
    """Runs one; the end of what it printed if it failed, None if not."""
    module, *arguments = shlex.split(study.command + f" {study.smoke}" * smoke)
    environment = {"BENCH_SMOKE": str(folder)} if smoke else {}
    if module.startswith("gpu_"):
        environment["JAX_PLATFORMS"] = "cpu"
    log = folder / f"{study.command.replace(' ', '_')}.log"
    with log.open("w") as file:
        process = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{module}", *arguments],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if process.returncode == 0:
        return None
    last = log.read_text().strip().splitlines()[-1:]
    return f"{' '.join(last)} ({log})"


def run_all(
    studies: Sequence[Study], folder: pathlib.Path, *, smoke: bool, resume: bool
) -> int:
    """Runs them, those that are done left out; returns how many failed."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "done.json"
    done: list[str] = json.loads(file.read_text()) if file.exists() and resume else []
    skipped, failed = {}, {}
    total = sum(1 if smoke else study.minutes for study in studies)
    look = "{desc}{percentage:.0f}%|{bar}| {n}/{total} {unit} [{elapsed}<{remaining}]"
    unit = "studies" if smoke else "minutes, roughly"
    with tqdm(total=total, unit=unit, bar_format=look) as bar:
        for study in studies:
            bar.set_description(study.command)
            reasons = [why for why in map(missing, needs_of(study, smoke)) if why]
            if study.command in done:
                pass
            elif reasons:
                skipped[study.command] = " ".join(reasons)
            elif error := run(study, folder, smoke):
                failed[study.command] = error
            else:
                done.append(study.command)
                if resume:
                    file.write_text(json.dumps(done))
            bar.update(1 if smoke else study.minutes)
    for command, why in skipped.items():
        print(f"Skipped {command}: {why}")
    for command, why in failed.items():
        print(f"FAILED {command}: {why}")
    print(f"{len(done)} done, {len(skipped)} skipped, {len(failed)} failed.")
    if resume and not failed:
        file.unlink(missing_ok=True)  # the next call runs all again
    return len(failed)


def needs_of(study: Study, smoke: bool) -> tuple[str, ...]:
    """What must be there."""
    if smoke and study.smoke_needs is not None:
        return study.smoke_needs
    return study.needs


def main() -> None:
    """Runs all, or those named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of commands")
    parser.add_argument("--smoke", action="store_true", help="the smallest sizes")
    arguments = parser.parse_args()
    names, smoke = arguments.names, arguments.smoke
    studies = [
        study
        for study in STUDIES
        if not names or any(name in study.command for name in names)
    ]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bench-")) if smoke else FOLDER
    failures = run_all(studies, folder, smoke=smoke, resume=not smoke and not names)
    if smoke and not failures:
        shutil.rmtree(folder)
    sys.exit(bool(failures))


if __name__ == "__main__":
    machine.take_one_core()
    main()
