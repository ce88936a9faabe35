"""Counts the bytes of version 0.1.0's updates as those of today's are counted.

Question: by how much have the bytes of a plain update and of a refresh fallen since
0.1.0?
Method: its package is taken from the repository's history, compiled for an A100 in a
process of its own, and counted by the programs of today, since counting has changed,
too: entries that are changed one by one and then sliced are now read in part.
Answer: docs/results/gpu.md, from benchmarks/results/gpu_first.json.

    JAX_PLATFORMS=cpu python -m benchmarks.gpu.first
"""

import functools
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile

import jax

from benchmarks.gpu import programs, target
from benchmarks.harness import results
from benchmarks.problems import shapes

COMMIT = "f630700"  # the last one before its package was rearranged
ROOT = pathlib.Path(__file__).parents[2]
MODEL = results.sized("resnet50", "resnet18")
OPTIONS = dict(momentum=0.9, weight_decay=1e-3, update_interval=50)


def measure() -> None:
    """Compiles both rules of the package that is imported, and writes the JSON."""
    package = importlib.import_module("jorge_optax")
    updates = importlib.import_module("benchmarks.cost.updates")
    params, rows = shapes.MODELS[MODEL](), []
    for name, rule in (("jorge", {}), ("composite", {"refresh": package.Composite()})):
        optimizer = package.jorge(0.1, **OPTIONS, **rule)
        state = jax.eval_shape(optimizer.init, params)
        step = functools.partial(updates.update, optimizer)
        program = target.compile_for("A100", step, (params, state, params), (0, 1))
        plain, refresh = programs.plain_and_refresh(program.text)
        assert refresh is not None
        rows.append(
            {
                "model": MODEL,
                "optimizer": name,
                "device": "A100",
                "commit": COMMIT,
                "plain_bytes": plain["traffic_bytes"],
                "plain_operations": plain["operations"],
                "refresh_bytes": refresh["traffic_bytes"],
                "refresh_operations": refresh["operations"],
            }
        )
        print(rows[-1], flush=True)
    results.write("gpu_first", rows)


def main() -> None:
    """Measures in a process that imports the package of 0.1.0."""
    if why := target.why_not():
        sys.exit(f"Skipped. {why}")
    if "--here" in sys.argv:
        measure()
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = ("git", "archive", COMMIT, "jorge_optax")
        sources = subprocess.run(archive, cwd=ROOT, capture_output=True, check=True)
        subprocess.run(("tar", "-x"), cwd=folder, input=sources.stdout, check=True)
        path = os.pathsep.join((folder, str(ROOT)))
        environment = os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        command = (sys.executable, "-m", "benchmarks.gpu.first", "--here")
        subprocess.run(command, cwd=ROOT, env=environment, check=True)


if __name__ == "__main__":
    main()
