"""Reads files of the table in a process of its own, and judges what it raised."""

import json
import pathlib
import select
import subprocess
import sys
from typing import Any

from tests.examples.hostile import table

ROOT = pathlib.Path(__file__).parents[3]
SECONDS = 30  # for one file; a fraction of a second where nothing else runs


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
                [sys.executable, "-m", "tests.examples.hostile.worker"],
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


def assert_refused(worker: Worker, name: str, folder: pathlib.Path) -> None:
    """A reader names file and field, in time, in little memory."""
    raised = worker.read(name, folder)
    assert raised is not None, "accepted"
    assert raised["kind"] in ("ValueError", "FileNotFoundError", "OSError"), raised
    for fragment in table.ROWS[name].fragments:
        assert fragment in raised["message"]
    assert len(raised["message"]) < 1500
    assert "allow_pickle" not in raised["message"]
