"""Runs in processes of their own: two train as one does, and kills do no harm."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from examples.shared import devices, log
from examples.shared.checkpoints import CHECKSUMS
from tests.examples.toy_task import assert_same_bits, saved_state

ROOT = pathlib.Path(__file__).parents[2]
STEPS, EVERY = 12, 4
MAIN = [sys.executable, "-m", "examples.classification.main"]
RUN = ("--steps", STEPS, "--devices", 8, "--spread", "--set", "batch_size=32")
RUN += ("--set", f"eval_every={EVERY}", "--set", f"checkpoint_every={EVERY}")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts the processes of a run; whatever is left of them is killed at the end."""
    cache = tmp_path_factory.mktemp("cache")  # what one compiled serves the others
    started = []

    def start(folder, processes):
        port = free_port()
        flags = f"--xla_force_host_platform_device_count={8 // processes}"
        for process in range(processes):
            join = ("--coordinator", f"127.0.0.1:{port}", "--processes", processes)
            join = (*join, "--process", process) if processes > 1 else ()
            with open(f"{folder}-{process}.txt", "a") as output:
                run = subprocess.Popen(
                    [*MAIN, *map(str, ("--out", folder, *RUN, *join))],
                    cwd=ROOT,
                    env={
                        **os.environ,
                        "JAX_PLATFORMS": "cpu",
                        "XLA_FLAGS": flags,
                        "NPROC": "16",  # threads of XLA: waiting devices occupy some
                        "JAX_COMPILATION_CACHE_DIR": str(cache),
                        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                    },
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            started.append(run)
        return started[-processes:]

    yield start
    for run in started:
        run.kill()
        run.wait()


def finish(folder, runs):
    for number, run in enumerate(runs):
        run.wait(timeout=600)
        output = pathlib.Path(f"{folder}-{number}.txt").read_text()
        assert run.returncode == 0, output
    return output


def reach(start, folder, step, processes=2):
    """Starts processes and waits until they have saved this step, still at work.

    On a busy machine the processes may not find each other in gloo's half minute.
    """
    saved = folder / "jorge-0" / "checkpoints" / str(step) / CHECKSUMS
    for _ in range(3):
        runs = start(folder, processes)
        while not saved.exists() and all(run.poll() is None for run in runs):
            time.sleep(0.01)
        if saved.exists():
            return runs
        for run in runs:
            run.kill()
    raise AssertionError(pathlib.Path(f"{folder}-0.txt").read_text())


def end_of(folder):
    return saved_state(folder / "jorge-0", STEPS)


@pytest.fixture(scope="module")
def pair(start, tmp_path_factory):
    """A run of two processes that nothing stopped."""
    folder = tmp_path_factory.mktemp("pair")
    finish(folder, reach(start, folder, STEPS))
    return folder


@pytest.fixture(scope="module")
def alone(start, tmp_path_factory):
    """A run of one process that nothing stopped."""
    folder = tmp_path_factory.mktemp("alone")
    finish(folder, start(folder, 1))
    return folder


@pytest.mark.slow
def test_two_processes_train_as_one(alone, pair):
    one, two = (jax.tree.leaves(end_of(folder)["params"]) for folder in (alone, pair))
    for mine, theirs in zip(one, two, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(one[-1], two[-1] + 1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "whole"), [(1, "alone"), (2, "pair")])
def test_a_killed_run_resumes_to_the_same_bits(
    start, tmp_path, request, processes, whole
):
    expected = end_of(request.getfixturevalue(whole))
    *others, last = reach(start, tmp_path, EVERY, processes)
    last.kill()
    assert last.wait() == -signal.SIGKILL
    for other in others:  # it would wait for the one killed, and fail
        other.kill()
        other.wait()
    assert not (tmp_path / "jorge-0" / "checkpoints" / f"{STEPS}").exists()
    assert "Resuming " in finish(tmp_path, reach(start, tmp_path, STEPS, processes))
    assert_same_bits(end_of(tmp_path), expected)
    nudged = jax.tree.map(lambda leaf: leaf * (1 + 1e-6), end_of(tmp_path))
    with pytest.raises(AssertionError):
        assert_same_bits(nudged, expected)
    rows = log.read(tmp_path / "jorge-0")
    assert [row["step"] for row in rows] == [EVERY, 2 * EVERY, STEPS]


def test_a_process_that_does_not_exist_is_refused():
    for process in (-1, 2):
        with pytest.raises(ValueError, match="numbered 0 to 1"):
            devices.join("127.0.0.1:1", 2, process)


def test_processes_that_were_told_different_numbers_are_refused():
    port = free_port()
    code = "import sys; from examples.shared import devices; "
    code += "devices.join(sys.argv[1], *map(int, sys.argv[2:])); print('joined')"
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, f"127.0.0.1:{port}", str(told), str(process)],
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process, told in enumerate((2, 3))
    ]
    first, second = (run.communicate(timeout=120)[0] for run in runs)
    assert "joined" in first
    assert "--processes 3: the process at 127.0.0.1" in second
    assert "was started with --processes 2" in second


def test_several_processes_take_all_devices(monkeypatch):
    count = jax.device_count()
    monkeypatch.setattr(jax, "devices", lambda: [None] * (count + 1))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=f"2 processes have {count + 1} devices"):
        devices.place(count)
