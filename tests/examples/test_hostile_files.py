"""Readers refuse hostile files: in time, in little memory, with file and field."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.examples.hostile.reading import CONTROLS, FAMILIES, HOSTILE, ROWS, Worker

pytestmark = pytest.mark.skipif(
    not pathlib.Path("/proc/self/statm").exists(), reason="limits memory as Linux does"
)


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.close()


def assert_refused(worker, name, folder):
    """A reader names file and field, in time, in little memory."""
    raised = worker.read(name, folder)
    assert raised is not None, "accepted"
    assert raised["kind"] in ("ValueError", "FileNotFoundError", "OSError"), raised
    for fragment in ROWS[name].fragments:
        assert fragment in raised["message"]
    assert len(raised["message"]) < 1500
    assert "allow_pickle" not in raised["message"]


def test_the_table_has_every_family_and_its_controls():
    assert len(ROWS) == sum(len(family.ROWS) for family in FAMILIES)
    assert len(HOSTILE) > 200  # as examples/README.md says
    families = {name.split("-")[0] for name in HOSTILE}
    assert families <= {name.split("-")[1] for name in CONTROLS}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused(worker, tmp_path, name):
    assert_refused(worker, name, tmp_path)


@pytest.mark.parametrize("name", CONTROLS)
def test_a_similar_file_is_accepted(worker, tmp_path, name):
    assert worker.read(name, tmp_path) is None


def test_without_the_checks_the_process_hangs_fails_or_dies(worker, tmp_path):
    assert worker.read("memory", tmp_path)["kind"] == "MemoryError"
    # pycocotools ends the process with a polygon of 1e9.
    assert worker.read("polygon", tmp_path)["kind"] == "ended"
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-c", "open('pipe', 'rb')"]
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(command, cwd=tmp_path, timeout=1, check=False)
