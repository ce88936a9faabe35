"""Runs tests in a process of their own, on eight simulated devices."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def run_on_eight_devices(*arguments):
    """Runs pytest on modules that need eight devices; its failures are raised.

    They are in one process, and their names do not start with ``test_``, so that
    pytest does not collect them on one device.
    """
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-10_000:] + process.stderr[-2_000:]
