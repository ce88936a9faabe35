"""Runs all studies, one after the other.

    python -m benchmarks.harness.run_all [NAME ...]           # hours
    python -m benchmarks.harness.run_all --smoke [NAME ...]   # minutes

With names, only the studies whose command contains one of them run. A study whose data
or packages are missing is skipped, with a message that says how to get them; a study
that fails does not stop the others. The output of each study is written to runs/bench/.

After an interruption, the next call resumes with the first unfinished study. Studies
that train save every run in their JSON file and skip the runs it already has: delete
the file to measure everything again.

A smoke run takes one seed and a few steps of each study and writes to a temporary
folder.
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

from benchmarks.harness import lab, machine
from examples.shared import files

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "runs" / "bench"


class Study(NamedTuple):
    """A command that runs in its own process.

    Attributes:
      command: module in benchmarks, and its arguments.
      minutes: rough duration on two cores.
      needs: required data and packages, by the names that :func:`missing` takes.
      smoke: additional arguments of a smoke run.
      smoke_needs: requirements of a smoke run; None if they are the same.
    """

    command: str
    minutes: int
    needs: tuple[str, ...] = ()
    smoke: str = ""
    smoke_needs: tuple[str, ...] | None = None


FASHION, CIFAR, PSGD, CUDA = "Fashion-MNIST", "CIFAR-10", "psgd-jax", "CUDA plugin"
LAB = "tag lab-0.1"
JORGES, WHITENING = "jorge jorge/sgd-schedule", "jorge-whitening/sgd-schedule"
STUDIES = (
    Study("gpu.compile", 20, (CUDA,)),
    Study("gpu.spread", 15, (CUDA,)),
    Study("cost.steps", 60, (PSGD,), smoke_needs=()),
    Study("cost.scale", 1),
    Study("cost.compilation", 5),
    Study("cost.before_after", 20, (LAB,)),
    Study("cost.before_after --updates", 20, (LAB,)),
    Study("cost.distributed", 10),
    Study("cost.memory", 40, (FASHION, CIFAR), "mlp", (FASHION,)),
    # It records gradients of all problems; in a smoke run, of one without data files.
    Study("robustness.descent", 30, (FASHION, CIFAR), smoke_needs=()),
    Study("robustness.fuzz", 30),
    Study("training.adamw", 60),
    Study("training.demo", 10),
    Study("training.demo --one-thread", 3),
    Study("training.ablation", 100, (FASHION, CIFAR), "'the rule' --problems lm", ()),
    Study("training.repeat", 15, (CIFAR,), smoke_needs=(CIFAR,)),
    Study("training.default_rate", 20, (FASHION, CIFAR), "mlp", (FASHION,)),
    *(
        Study(f"training.comparison {run}", minutes, (data, PSGD), only, (data,))
        for run, data, minutes, only in (
            ("mlp --tune", FASHION, 20, "--only sgd adamw muon shampoo"),
            ("mlp --final", FASHION, 30, "--only sgd muon whitening@10/sgd-rate"),
            ("autoencoder --tune", FASHION, 20, "--only sgd adamw shampoo"),
            ("autoencoder --final", FASHION, 30, "--only sgd"),
            ("autoencoder_long --final", FASHION, 30, "--only sgd"),
            ("resnet --tune", CIFAR, 40, "--only sgd adamw"),
            ("resnet --final", CIFAR, 60, "--only sgd"),
        )
    ),
    Study("training.workloads classification --tune", 60, (CIFAR,)),
    Study("training.workloads classification --final", 120, (CIFAR,), "sgd jorge"),
    Study("training.workloads classification --short", 20, (CIFAR,)),
    Study("training.workloads segmentation --tune", 60),
    Study("training.workloads segmentation --final", 120, (), "sgd jorge-whitening"),
    Study("training.workloads segmentation --short", 20),
    Study("training.workloads detection --tune sgd adamw", 30),
    Study(f"training.workloads detection --final sgd adamw {JORGES} {WHITENING}", 60),
    Study("training.workloads detection --short", 10),
)


@functools.cache
def missing(need: str) -> str | None:
    """Says how to install a requirement; None if it is installed."""
    readers = {FASHION: files.read_fashion_mnist, CIFAR: files.read_cifar10}
    if need in readers:
        try:
            readers[need]("test")
        except (FileNotFoundError, ValueError) as error:
            return str(error)
        return None
    if need == LAB:
        command = ["git", "rev-parse", "--quiet", "--verify", lab.TAG]
        found = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False
        )
        remedy = f"the tag {lab.TAG} is missing: git fetch origin tag {lab.TAG}"
        return remedy if found.returncode else None
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
    """Runs a study; returns the last line of its output if it failed, else None."""
    module, *arguments = shlex.split(study.command + f" {study.smoke}" * smoke)
    environment = {"BENCH_SMOKE": str(folder)} if smoke else {}
    if module.startswith("gpu."):
        environment["JAX_PLATFORMS"] = "cpu"
    name = study.command.replace(" ", "_").replace("/", "-")
    log = folder / f"{name}.log"
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
    """Runs the studies that are not done yet; returns the number of failures."""
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
    """Returns the requirements of a study."""
    if smoke and study.smoke_needs is not None:
        return study.smoke_needs
    return study.needs


def main() -> None:
    """Runs all studies, or the named ones."""
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
