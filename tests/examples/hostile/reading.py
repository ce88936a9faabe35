"""Reads the files of the table in a process of its own, with little memory.

A line of its standard input names a row and a folder. A line of standard output tells
what the reader raised, or null. The process has `HEADROOM` bytes more than it had after
its imports, so that a reader that allocates too much fails or dies.
"""

import json
import pathlib
import resource
import select
import subprocess
import sys
import warnings
from typing import Any

from tests.examples.hostile import coco_rows, data_rows, run_rows, weights_rows
from tests.examples.hostile.row import Row

ROOT = pathlib.Path(__file__).parents[3]
SECONDS = 30  # for one file; a fraction of a second where nothing else runs
HEADROOM = 2**28
FAMILIES = (coco_rows, data_rows, weights_rows, run_rows)
ROWS = {row.name: row for family in FAMILIES for row in family.ROWS}
HOSTILE = [name for name, row in ROWS.items() if row.fragments]
CONTROLS = [name for name, row in ROWS.items() if not row.fragments]
# Two readers that show what the bounds are for.
POLYGON = coco_rows.segmented([[0, 0, 1e9, 0, 1e9, 1e9]])
UNCHECKED = {
    "memory": Row("", {}, lambda folder: len(bytes(2**30))),
    "polygon": Row("", POLYGON, coco_rows.read_unchecked),
}


class Worker:
    """A process that reads files of the table; a new one follows one that ended."""

    def __init__(self) -> None:
        self._process: Any = None

    def read(
        self, name: str, folder: pathlib.Path, seconds: float = SECONDS
    ) -> dict[str, str] | None:
        """Returns what the reader raised, None if nothing, or how the process ended."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.examples.hostile.reading"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            self.read("control-lock", folder / "first", seconds=120)  # its imports
        folder.mkdir(exist_ok=True)
        self._process.stdin.write(json.dumps([name, str(folder)]) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        line = self._process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        self.close()
        return {"kind": "ended" if ready else "hung", "message": ""}

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def attempt(name: str, folder: pathlib.Path) -> dict[str, str] | None:
    row = {**ROWS, **UNCHECKED}[name]
    row.make(folder)
    try:
        row.read(folder)
    except BaseException as error:
        return {"kind": type(error).__name__, "message": str(error)}
    return None


def main() -> None:
    warnings.simplefilter("ignore")  # pycocotools under NumPy 2
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    for line in sys.stdin:
        name, folder = json.loads(line)
        sys.stdout.write(json.dumps(attempt(name, pathlib.Path(folder))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
