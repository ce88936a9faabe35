"""Runs a check in a process of its own, on eight simulated devices."""

import os
import pathlib
import subprocess
import sys


def run_on_eight_devices(check):
    """Runs a function of a test module without arguments; its failure is raised."""
    code = f"import {check.__module__} as tests; tests.{check.__name__}()"
    flags = os.environ.get("XLA_FLAGS", "")
    flags += " --xla_force_host_platform_device_count=8"
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=pathlib.Path(__file__).parents[2],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
