"""Results of benchmarks: JSON with provenance, under benchmarks/results/.

If the environment variable BENCH_SMOKE names a folder, all studies run at the smallest
size that exercises their code and write there: see run_all.py.
"""

import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
from typing import Any

import jax
import optax

SMOKE = os.environ.get("BENCH_SMOKE")
FOLDER = pathlib.Path(SMOKE or pathlib.Path(__file__).parent / "results")


def sized(full: Any, smoke: Any) -> Any:
    """The first, or in a smoke run the second."""
    return smoke if SMOKE else full


def write(name: str, rows: list[dict[str, Any]], **facts: object) -> pathlib.Path:
    """Writes rows and where they come from; returns the file.

    The seeds that rows name are among the facts, unless they are given.
    """
    seeds = sorted({row["seed"] for row in rows if "seed" in row})
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        cwd=pathlib.Path(__file__).parent,
        check=False,
    ).stdout.strip()
    provenance = {
        "command": "python -m " + _module_name(),
        "commit": commit,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "optax": optax.__version__,
        "device": f"{jax.devices()[0].device_kind} ({platform.machine()})",
        **({"seeds": seeds} if seeds else {}),
        **facts,
    }
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    text = json.dumps({"provenance": provenance, "rows": rows}, indent=1)
    # A list without lists or dicts inside takes one line.
    text = re.sub(r"\[[^][{}]*\]", lambda match: " ".join(match[0].split()), text)
    path.write_text(text)
    return path


def read(name: str) -> dict:
    """What :func:`write` wrote."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def _module_name() -> str:
    spec = sys.modules["__main__"].__spec__
    name = spec.name if spec else pathlib.Path(sys.argv[0]).stem
    return " ".join([name, *sys.argv[1:]])
