"""Readers refuse hostile files: in time, in little memory, with file and field."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.examples.hostile import table
from tests.examples.hostile.reading import Worker, assert_refused
from tests.examples.hostile.table import CONTROLS, HOSTILE

pytestmark = pytest.mark.skipif(
    not pathlib.Path("/proc/self/statm").exists(), reason="limits memory as Linux does"
)


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.close()


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
    assert_refused(worker, name, tmp_path)


@pytest.mark.parametrize("name", CONTROLS)
def test_a_similar_file_is_accepted(worker, tmp_path, name):
    assert worker.read(name, tmp_path) is None
    with pytest.raises(AssertionError, match="accepted"):
        assert_refused(worker, name, tmp_path / "again")


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
