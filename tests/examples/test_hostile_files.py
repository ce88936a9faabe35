"""Readers refuse hostile files: in time, in little memory, with file and field."""

import json
import os
import pathlib
import select
import subprocess
import sys

import pytest

from tests.examples.hostile import table

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 30  # for one file; a fraction of a second where nothing else runs

pytestmark = pytest.mark.skipif(
    not pathlib.Path("/proc/self/statm").exists(), reason="limits memory as Linux does"
)


class Worker:
    """A process that reads files of the table; a new one follows one that ended."""

    def __init__(self):
        self._process = None

    def read(self, name, folder, seconds=SECONDS):
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

    def close(self):
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.close()


HOSTILE = [name for name, row in table.ROWS.items() if row.fragments]
CONTROLS = [name for name, row in table.ROWS.items() if not row.fragments]


def test_the_table_has_every_family_and_its_controls():
    assert len(table.ROWS) == sum(len(family.ROWS) for family in table.FAMILIES)
    assert len(HOSTILE) > 200
    families = {name.split("-")[0] for name in HOSTILE}
    assert families == {
        *("coco", "image", "idx", "cifar", "safetensors", "npz"),
        *("config", "log", "lock"),
    }
    assert families <= {name.split("-")[1] for name in CONTROLS}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused(worker, tmp_path, name):
    raised = worker.read(name, tmp_path)
    assert raised is not None, "accepted"
    assert raised["kind"] in ("ValueError", "FileNotFoundError", "OSError"), raised
    for fragment in table.ROWS[name].fragments:
        assert fragment in raised["message"]
    assert len(raised["message"]) < 1500
    assert "allow_pickle" not in raised["message"]


@pytest.mark.parametrize("name", CONTROLS)
def test_a_similar_file_is_accepted(worker, tmp_path, name):
    assert worker.read(name, tmp_path) is None


# Controls of the bounds: without the checks the process hangs, fails or dies.


def test_the_process_has_little_memory(worker, tmp_path):
    raised = worker.read("unchecked-memory", tmp_path)
    assert raised["kind"] == "MemoryError"


def test_pycocotools_ends_the_process_with_a_polygon_of_1e9(worker, tmp_path):
    assert worker.read("unchecked-polygon", tmp_path)["kind"] == "ended"


def test_a_pipe_that_is_opened_plainly_hangs(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-c", "open('pipe', 'rb')"]
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(command, cwd=tmp_path, timeout=1, check=False)
