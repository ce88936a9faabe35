"""Results of benchmarks: JSON with provenance, under benchmarks/results/."""

import datetime
import json
import pathlib
import platform
import re
import subprocess
import sys

import jax
import optax

FOLDER = pathlib.Path(__file__).parent / "results"


def write(name: str, rows: object, **facts: object) -> pathlib.Path:
    """Writes rows and where they come from; returns the file."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        cwd=FOLDER.parent,
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
