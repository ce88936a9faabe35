"""The folder of a run: its lock, and files that are written whole."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from examples.shared import run_folder
from examples.shared.checkpoints import Checkpoints
from examples.shared.log import Log
from tests.examples import toy_task

ROOT = pathlib.Path(__file__).parents[2]
OWNER = """
import pathlib, subprocess, sys
from examples.shared import run_folder
try:
    with run_folder.locked(pathlib.Path(sys.argv[1])):
        heir = None
        if "heir" in sys.argv:
            command = [sys.executable, "-c", "input()"]
            heir = subprocess.Popen(command, close_fds=False).pid
        print("held", heir, flush=True)
        sys.stdin.readline()
except ValueError as error:
    print("refused", error, flush=True)
"""


@pytest.fixture
def start():
    """Starts processes that lock a folder until they read a line; kills them all."""
    with contextlib.ExitStack() as cleanup:

        def start(folder, *arguments):
            process = subprocess.Popen(
                [sys.executable, "-c", OWNER, str(folder), *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            cleanup.callback(process.communicate)
            cleanup.callback(process.kill)
            return process

        yield start


def said(process):
    return process.stdout.readline().split(maxsplit=1)


# The lock.


def test_of_many_that_start_together_one_runs_and_the_others_end(start, tmp_path):
    folder = tmp_path / "run"
    processes = [start(folder) for _ in range(3)]
    lines = [said(process) for process in processes]
    (owner,) = (i for i, (word, _) in enumerate(lines) if word == "held")
    for number, (word, message) in enumerate(lines):
        if number != owner:
            assert word == "refused"
            assert str(folder) in message
            assert f"process {processes[owner].pid} on " in message
            assert "choose another folder with --out" in message
            assert processes[number].wait(timeout=60) == 0


def test_a_lock_ends_with_its_owner_however_that_ends(start, tmp_path):
    owner = start(tmp_path, "heir")  # which has all that it may inherit
    heir = int(said(owner)[1])
    try:
        owner.kill()
        assert owner.wait(timeout=60) == -signal.SIGKILL
        os.kill(heir, 0)  # it is there
        third = start(tmp_path)
        assert said(third)[0] == "held"
        assert (tmp_path / "lock").read_text().startswith(f"{third.pid} on ")
    finally:
        os.kill(heir, signal.SIGKILL)


def test_a_run_touches_nothing_in_a_folder_that_is_in_use(tmp_path):
    with run_folder.locked(tmp_path):
        with pytest.raises(ValueError, match=f"process {os.getpid()} on"):
            toy_task.train(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]
        with run_folder.locked(tmp_path / "other"):
            pass
    with run_folder.locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_locked_is_told(tmp_path, monkeypatch):
    def refuse(handle, how):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(run_folder.fcntl, "flock", refuse)
    with (
        pytest.warns(UserWarning, match="without locks .No locks available"),
        run_folder.locked(tmp_path),
    ):
        pass


def test_a_run_that_fails_closes_its_files_and_its_lock(tmp_path, monkeypatch):
    closed = []
    for kind in (Checkpoints, Log):

        def close(self, kind=kind, before=kind.close):
            closed.append(kind)
            before(self)

        monkeypatch.setattr(kind, "close", close)

    def fail(step):
        raise ValueError("some.jpg cannot be decoded")

    with pytest.raises(ValueError, match=r"some\.jpg"):
        toy_task.train(tmp_path, "sgd", on_batch=fail)
    assert len(closed) == 2
    assert set(closed) == {Checkpoints, Log}
    with run_folder.locked(tmp_path):
        pass


# Files.


def test_a_file_is_on_the_disk_before_it_replaces_another(tmp_path, monkeypatch):
    path, calls = tmp_path / "config.json", []
    with monkeypatch.context() as patch:
        for name in ("fsync", "replace"):
            real = getattr(os, name)

            def call(*arguments, name=name, real=real):
                calls.append(name)
                return real(*arguments)

            patch.setattr(os, name, call)
        run_folder.claim(tmp_path, {"seed": 0})
    assert calls == ["fsync", "replace", "fsync"]  # the last one is the folder's
    run_folder.claim(tmp_path, {"seed": 0})
    with pytest.raises(ValueError, match="another run: seed differ"):
        run_folder.claim(tmp_path, {"seed": 1})

    def fail(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            run_folder.write_whole(path, "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]
    assert json.loads(path.read_text()) == {"seed": 0}
