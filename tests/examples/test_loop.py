"""The loop that the examples share: rows, checkpoints, resuming, comparing."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from examples.shared import compare, flags, log, loop
from tests.examples import toy_task
from tests.examples.toy_task import assert_same_bits, saved_state, train

ROOT = pathlib.Path(__file__).parents[2]
MAIN = [sys.executable, "-m", "examples.classification.main"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, train(folder)


# What a run leaves behind.


def test_a_run_has_a_row_for_each_evaluation(whole):
    folder, rows = whole
    assert [row["step"] for row in rows] == [5, 10, 15, 20]
    assert [row["epoch"] for row in rows] == [0.5, 1.0, 1.5, 2.0]
    assert all(np.diff([row["seconds"] for row in rows]) > 0)
    assert rows[-1]["accuracy"] > rows[0]["accuracy"]
    assert rows == log.read(folder)
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1


def test_the_learning_rate_falls_in_thirds(whole):
    rates = [row["learning_rate"] for row in whole[1]]
    np.testing.assert_allclose(rates, [0.1, 0.01, 0.001, 0.001], rtol=1e-6)


def test_a_run_begins_with_its_settings_and_the_table_of_parameters(whole):
    text = (whole[0] / "start.txt").read_text()
    assert "weight_decay: 0.001" in text
    assert "learning_rate: 0.1, times 0.1 at steps 6, 12\n" in text
    assert "rule: BinomialSeries()\n" in text
    assert "first/kernel" in text
    assert "preconditioned" in text


def test_a_run_ends_with_a_summary(whole):
    folder, rows = whole
    text = (folder / loop.SUMMARY).read_text()
    final = f"{rows[-1]['accuracy']:.4f}"
    assert text.startswith(f"jorge, seed 0: accuracy {final} after 20 steps\n")
    assert "s to compile it" in text
    best = [{**rows[0], "accuracy": 0.99}, *rows[1:]]
    assert "best accuracy 0.9900, at step 5" in loop.summarize("", best, "accuracy")
    gone = [{**row, "accuracy": None, "loss": None} for row in rows]
    assert "accuracy diverged after 20 steps" in loop.summarize("", gone, "accuracy")


def test_a_complete_run_is_not_run_again(whole, capsys):
    folder, rows = whole
    seen = []
    assert train(folder, on_batch=seen.append) == rows
    assert seen == []
    output = capsys.readouterr()
    assert "is complete; remove it to run it again" in output.out
    assert "compiling" not in output.err


def test_roots_go_to_tensorboard_and_to_a_file(tmp_path, capsys):
    train(tmp_path, steps=5, diagnose=True)
    assert "jorge, seed 0: compiling the step ... " in capsys.readouterr().err
    text = (tmp_path / "roots.txt").read_text()
    assert "first/kernel" in text
    assert "2 parameters with roots" in text
    (events,) = tmp_path.glob("events.out.tfevents.*")
    assert b"roots/first/kernel/condition" in events.read_bytes()


def test_the_last_and_the_best_checkpoints_stay(tmp_path):
    config = dataclasses.replace(toy_task.CONFIG, eval_every=2)
    rows = train(tmp_path, config=config, keep=2)
    best = sorted(rows, key=lambda row: (row["accuracy"], row["step"]))[-2:]
    names = {int(p.name) for p in (tmp_path / "checkpoints").iterdir()}
    assert {20} < names | {-1}
    assert len(names) <= 3
    kept = sorted((r["accuracy"] for r in rows if r["step"] in names), reverse=True)
    assert kept[:2] == sorted((row["accuracy"] for row in best), reverse=True)


def test_all_optimizers_train_from_the_same_start(tmp_path):
    for name in ("sgd", "adamw", "shampoo", "jorge-whitening", "jorge/sgd-schedule"):
        rows = train(tmp_path / name.replace("/", "-"), name, steps=5)
        assert np.isfinite(rows[-1]["loss"])


# Stopping and resuming.


def test_a_run_that_ctrl_c_stopped_resumes_to_the_same_bits(whole, tmp_path, capsys):
    def interrupt(step):
        if step == 7:  # after the seventh step, between evaluations
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, on_batch=interrupt)
    assert "the same command resumes" in capsys.readouterr().out
    stopped = max(int(p.name) for p in (tmp_path / "checkpoints").iterdir())
    assert stopped in (7, 8)
    seen = []
    rows = train(tmp_path, on_batch=seen.append)
    assert seen[0] == stopped  # it did not start again
    assert [row["step"] for row in rows] == [5, 10, 15, 20]
    assert_same_bits(saved_state(tmp_path, 20), saved_state(whole[0], 20))


def test_the_same_bits_are_not_had_with_another_seed(whole, tmp_path):
    train(tmp_path, seed=1)
    with pytest.raises(AssertionError):
        assert_same_bits(saved_state(tmp_path, 20), saved_state(whole[0], 20))


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Starts a run of a small ResNet on digits in another process."""
    cache = tmp_path_factory.mktemp("cache")  # what one compiled serves the others

    def start(folder, *arguments, **environment):
        return subprocess.Popen(
            [*MAIN, "--out", str(folder), *arguments],
            cwd=ROOT,
            env={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "JAX_COMPILATION_CACHE_DIR": str(cache),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def finish(process):
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


@pytest.mark.slow
def test_a_run_that_was_killed_resumes_to_the_same_bits(digits, tmp_path):
    every = ("--set", "eval_every=8", "--set", "checkpoint_every=8")
    arguments = ("--steps", "24", *every)
    finish(digits(tmp_path / "whole", *arguments))
    process = digits(tmp_path / "killed", *arguments)
    checkpoints = tmp_path / "killed" / "jorge-0" / "checkpoints"
    while process.poll() is None and not (checkpoints / "8").exists():
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (checkpoints / "24").exists()
    output = finish(digits(tmp_path / "killed", *arguments))
    assert "Resuming " in output
    states = [
        saved_state(tmp_path / name / "jorge-0", 24) for name in ("whole", "killed")
    ]
    assert_same_bits(*states)
    rows = log.read(tmp_path / "killed" / "jorge-0")
    assert [row["step"] for row in rows] == [8, 16, 24]


@pytest.mark.slow
def test_eight_devices_train_as_one(digits, tmp_path):
    arguments = ("--steps", "3", "--set", "eval_every=3")
    fake = "--xla_force_host_platform_device_count=8"
    params = []
    for count in ("1", "8"):
        folder = tmp_path / count
        finish(digits(folder, *arguments, "--devices", count, XLA_FLAGS=fake))
        params.append(jax.tree.leaves(saved_state(folder / "jorge-0", 3)["params"]))
    for one, eight in zip(*params, strict=True):
        np.testing.assert_allclose(one, eight, atol=2e-4)
    assert any(not np.array_equal(*pair) for pair in zip(*params, strict=True))


def test_more_devices_than_there_are_is_an_error(tmp_path):
    config = dataclasses.replace(toy_task.CONFIG, batch_size=1024)
    with pytest.raises(ValueError, match="xla_force_host_platform_device_count=512"):
        train(tmp_path, config=config, devices=512)
    with pytest.raises(ValueError, match="batch of 16 cannot be shared by 5"):
        train(tmp_path, devices=5)


def test_a_folder_with_another_run_is_refused(whole, tmp_path):
    train(tmp_path, steps=5)
    with pytest.raises(ValueError, match="holds another run: seed, steps differ"):
        train(tmp_path, seed=1)


def test_a_line_cut_short_and_rows_after_the_checkpoint_are_dropped(tmp_path):
    lines = [json.dumps({"step": step}) for step in (5, 10, 15)]
    (tmp_path / log.METRICS).write_text("\n".join(lines) + '\n{"step": 2')
    assert [row["step"] for row in log.read(tmp_path)] == [5, 10, 15]
    log.Log(tmp_path, after_step=10).close()
    assert [row["step"] for row in log.read(tmp_path)] == [5, 10]


def test_a_run_that_has_diverged_is_logged(tmp_path):
    one = log.Log(tmp_path)
    one.write({"step": 1, "loss": None, "accuracy": 0.1})
    one.close()
    assert log.read(tmp_path) == [{"step": 1, "loss": None, "accuracy": 0.1}]


# Comparing.


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    result = compare.compare(
        toy_task.make_task, toy_task.CONFIG, ["sgd", "jorge"], [0, 1], folder
    )
    return folder, result


def test_the_target_is_a_share_of_what_sgd_reaches(comparison):
    folder, result = comparison
    finals = [rows[-1]["accuracy"] for rows in result.runs["sgd"]]
    assert result.target == pytest.approx(0.99 * np.mean(finals))
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "compare.json").read_text())["target"] == result.target


def test_the_table_lists_each_seed_and_misses(comparison):
    _, result = comparison
    unreachable = result._replace(target=1.1)
    _, _, sgd, jorge = compare.table(unreachable).splitlines()
    assert sgd.split()[:5] == ["sgd", "miss", "miss", "miss", "miss"]
    assert jorge.split()[0] == "jorge"
    easy = compare.table(result._replace(target=0.0)).splitlines()
    assert easy[2].split()[1:3] == ["5", "5"]


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([0.5, 0.9, 0.95], 2),
        ([0.9, 0.5, 0.95], 3),  # it fell below the target again
        ([0.9, 0.9, 0.9], 1),
        ([0.9, 0.95, 0.5], None),
        ([0.9, 0.95, None], None),
    ],
)
def test_a_target_is_reached_where_the_run_stays_above_it(values, step):
    rows = [{"step": i, "accuracy": x} for i, x in enumerate(values, 1)]
    reached = compare.crossing(rows, "accuracy", 0.9)
    assert (reached and reached["step"]) == step


def test_a_comparison_without_sgd_needs_a_target(tmp_path):
    arguments = toy_task.make_task, toy_task.CONFIG, ["jorge"], [0], tmp_path
    with pytest.raises(ValueError, match="--target"):
        compare.compare(*arguments)
    with pytest.raises(ValueError, match="No optimizer 'sdg'"):
        compare.compare(*arguments[:2], ["sdg"], [0], tmp_path, target=0.5)


def test_a_run_that_diverged_misses_and_is_drawn(comparison, tmp_path):
    _, result = comparison
    gone = [{**row, "accuracy": None} for row in result.runs["sgd"][0]]
    broken = result._replace(runs={**result.runs, "jorge": [gone, gone]})
    assert "miss" in compare.table(broken).splitlines()[3]
    compare.plot(broken, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


# Flags.


def test_fields_of_a_configuration_can_be_set():
    config = flags.override(toy_task.CONFIG, "batch_size=4")
    config = flags.override(config, "sgd.schedule.kind=polynomial")
    assert config.batch_size == 4
    assert config.sgd.schedule.kind == "polynomial"
    assert config.sgd.learning_rate == toy_task.CONFIG.sgd.learning_rate
    with pytest.raises(SystemExit, match="the fields are dataset, model"):
        flags.override(config, "batchsize=4")
