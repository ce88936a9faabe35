"""Attacks the package with random trees, options and gradients.

Question: does a finite gradient ever give a state or a step that is not finite, a step
of another length than SGD's, an ascent, or options an error that does not name them?
Does a reader of the examples accept a hostile file, hang, or die?
Method: the properties of tests/helpers/fuzz.py, with cases drawn by hypothesis from
fixed seeds: every setting on all trees, in one of the dtypes of parameters in turn;
equivariances; options. A fault is shrunk, printed, and counted. Then the files of
tests/examples/hostile, read in a process with little memory.
Answer: docs/robustness.md, from benchmarks/results/fuzz.json, where

    attack     what was tried
    cases      number of sequences, of pairs of runs, of sets of options, or of files
    steps      number of updates in them, where they were counted
    refused    sets of options, or files, that were refused by name
    faults     number of settings, or of files, in which a case failed

    make fuzz                                     # or
    python -m benchmarks.robustness.fuzz [--examples 100]
"""

import argparse
import functools
import pathlib
import tempfile
import traceback
import zlib
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from benchmarks.harness import results
from tests.examples.hostile.reading import HOSTILE, ROWS, Worker
from tests.helpers import fuzz

SEEDS = st.integers(0, 2**32 - 1)
RULES = st.sampled_from([*fuzz.EQUIVARIANT])
EVEN = st.sampled_from([-16, -6, 4, 16])  # each is compiled: eps goes with it


def attack(name: str, check: Callable[..., None], examples: int, *drawn: Any) -> bool:
    """Runs a property on examples; prints a fault; returns whether there was one.

    The name seeds the examples: equal names draw equal ones, others draw others.
    """
    chosen = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        property_ = given(st.tuples(*drawn))(lambda case: check(*case))
        chosen(seed(zlib.crc32(name.encode()))(property_))()
    except Exception:
        traceback.print_exc()
        return True
    return False


def counted(name: str, cases: str, run: Callable[[], bool]) -> dict[str, Any]:
    """One row: runs an attack, and counts what it tried."""
    fuzz.COUNTS.clear()
    faults = int(run())
    row = {"attack": name, "cases": fuzz.COUNTS[cases], "faults": faults}
    if cases == "sequences":
        row["steps"] = fuzz.COUNTS["steps"]
    if cases == "options":
        row["refused"] = fuzz.COUNTS["options refused"]
    print(row, flush=True)
    return row


def sequences(name: str, dtype: str, examples: int) -> dict[str, Any]:
    """Attacks one setting with all trees at once: one program to compile."""

    def check(case: list[fuzz.Step]) -> None:
        fuzz.survives(name, "all of these", dtype, case)

    title = f"gradients in {dtype}: {name}"
    run = functools.partial(attack, title, check, examples, fuzz.sequences)
    row = counted(title, "sequences", run)
    fuzz.runner.cache_clear()
    return row


def files(family: str) -> dict[str, Any]:
    """Attacks the readers of the examples with a family of files."""
    names = [name for name in HOSTILE if name.startswith(f"{family}-")]
    worker, faults = Worker(), 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            raised = worker.read(name, pathlib.Path(folder)) or {"kind": "accepted"}
            refused = raised["kind"] in ("ValueError", "FileNotFoundError", "OSError")
            words = ROWS[name].fragments
            if not refused or not all(word in raised["message"] for word in words):
                print(name, raised, flush=True)
                faults += 1
    worker.close()
    row = {"attack": f"files: {family}", "cases": len(names), "faults": faults}
    print(row, flush=True)
    return {**row, "refused": len(names) - faults}


def main() -> None:
    """Runs everything and writes the JSON."""
    parser = argparse.ArgumentParser()
    default = results.sized(100, 2)
    parser.add_argument(
        "--examples", type=int, default=default, help="for each setting"
    )
    examples = parser.parse_args().examples
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        results.write("fuzz", rows, examples=examples)  # what there is so far

    families = dict.fromkeys(name.split("-")[0] for name in HOSTILE)
    for family in results.sized([*families], ["log"]):
        add(files(family))
    others = {
        "options": ("options", fuzz.refuses_or_runs, fuzz.options),
        "gradients scaled by powers of four": (
            "equivariances",
            fuzz.scales,
            RULES,
            EVEN,
            SEEDS,
        ),
        "rows and columns permuted": ("equivariances", fuzz.permutes, RULES, SEEDS),
        "gradients transposed, whitening": ("equivariances", fuzz.transposes, SEEDS),
    }
    chosen = results.sized([*fuzz.SETTINGS], ["default"])
    for i, name in enumerate(chosen):
        dtypes = fuzz.SETTINGS[name].dtypes
        add(sequences(name, dtypes[i % len(dtypes)], examples))
    for name, (cases, check, *drawn) in others.items():
        run = functools.partial(attack, name, check, examples, *drawn)
        add(counted(name, cases, run))


if __name__ == "__main__":
    main()
