"""What steadies timings, seen in a process of its own."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES_OF_AN_ARRAY = 2**26 // 4096
PROGRAM = """
import resource, sys
import numpy as np
from benchmarks.harness import machine

if "keep" in sys.argv and not machine.keep_memory():
    sys.exit("no glibc")
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(2**26, np.uint8)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_touched_first(*arguments):
    """Of three arrays of equal size, one after the other: fresh pages of each."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.stderr.strip() == "no glibc":
        pytest.skip("not with this C library")
    return [int(line) for line in run.stdout.split()]


def test_freed_memory_is_used_again():
    first, *later = pages_touched_first("keep")
    assert first > 0
    assert max(later) < 0.01 * PAGES_OF_AN_ARRAY
    # Otherwise each array has fresh pages, be they small or huge.
    assert min(pages_touched_first()) > max(10, 10 * max(later))


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="not on this system")
def test_a_steady_process_starts_anew_on_one_core():
    program = """
import os
from benchmarks.harness import machine
print(len(os.sched_getaffinity(0)), flush=True)
machine.steady()
print("steady")
"""
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    cores = len(os.sched_getaffinity(0))
    starts = ["1"] if cores == 1 else [str(cores), "1"]
    assert run.stdout.split() == [*starts, "steady"]
    assert len(os.sched_getaffinity(0)) == cores  # of this process: untouched
