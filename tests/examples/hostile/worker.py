"""Reads one file of the table after the other, in little memory.

A line of standard input names a row and a folder. A line of standard output tells what
the reader raised, or null. The process has `HEADROOM` bytes more than it had after its
imports, so that a reader that allocates too much fails or dies.
"""

import json
import pathlib
import resource
import sys
import warnings

from tests.examples.hostile import table

HEADROOM = 2**28


def limit_memory() -> None:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def attempt(name: str, folder: pathlib.Path) -> dict[str, str] | None:
    row = {**table.ROWS, **table.UNCHECKED}[name]
    row.make(folder)
    try:
        row.read(folder)
    except BaseException as error:
        return {"kind": type(error).__name__, "message": str(error)}
    return None


def main() -> None:
    warnings.simplefilter("ignore")  # pycocotools under NumPy 2
    limit_memory()
    for line in sys.stdin:
        name, folder = json.loads(line)
        sys.stdout.write(json.dumps(attempt(name, pathlib.Path(folder))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
