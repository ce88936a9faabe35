"""Reads and writes results: JSON with provenance in benchmarks/results.

If the environment variable BENCH_SMOKE names a folder, all studies run at the smallest
size that exercises their code, and write to that folder: see run_all.py.
"""

import contextlib
import datetime
import fcntl
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import optax

SMOKE = os.environ.get("BENCH_SMOKE")
BENCHMARKS = pathlib.Path(__file__).parents[1]
FOLDER = pathlib.Path(SMOKE or BENCHMARKS / "results")


def sized(full: Any, smoke: Any) -> Any:
    """Returns the first value, or in a smoke run the second."""
    return smoke if SMOKE else full


def write(name: str, rows: list[dict[str, Any]], **facts: object) -> pathlib.Path:
    """Writes rows with their provenance; returns the path of the file.

    The provenance lists the seeds of the rows, unless the facts do. Each row has the
    commit at which it was measured: rows from :func:`rows` keep theirs.
    """
    seeds = sorted({row["seed"] for row in rows if "seed" in row})
    rows = [{**row, "commit": row.get("commit", COMMIT)} for row in rows]
    provenance = {
        "command": "python -m " + _module_name(),
        "commit": COMMIT,
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
    """Reads a file that :func:`write` wrote."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def rows(name: str) -> list[dict[str, Any]]:
    """Returns the rows written so far, with their commits; none without a file."""
    try:
        data = read(name)
    except FileNotFoundError:
        return []
    commit = data["provenance"]["commit"]
    return [{"commit": commit, **row} for row in data["rows"]]


@contextlib.contextmanager
def lock() -> Iterator[None]:
    """Lets one process write at a time; others may run parts of the same study."""
    with open(__file__) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _commit() -> str:
    """Returns the commit, with "-dirty" if files other than results differ from it."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        run = subprocess.run(
            command, capture_output=True, text=True, cwd=BENCHMARKS.parent, check=False
        )
        return run.stdout.strip()

    changed = git("diff", "--name-only", "HEAD", "--", ".", ":!benchmarks/results")
    return git("describe", "--always") + ("-dirty" if changed else "")


def _module_name() -> str:
    spec = sys.modules["__main__"].__spec__
    name = spec.name if spec else pathlib.Path(sys.argv[0]).stem
    # Folders of the machine do not belong into the results.
    plain = (pathlib.Path(a).name if os.path.isabs(a) else a for a in sys.argv[1:])
    return " ".join([name, *plain])


COMMIT = _commit()  # read at once: files may change while a study runs
