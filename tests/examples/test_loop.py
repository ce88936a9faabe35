"""The loop that the examples share: rows, checkpoints, resuming, flags."""

import dataclasses
import json
import os
import signal

import numpy as np
import pytest

from examples.shared import flags, log, loop
from examples.shared.optimizers import OPTIMIZERS
from tests.examples import toy_task
from tests.examples.toy_task import assert_same_bits, saved_state, train
from tests.helpers.devices import run_on_eight_devices


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, train(folder)


# What a run leaves behind.


def test_a_run_has_a_row_for_each_evaluation(whole):
    folder, rows = whole
    assert [(row["step"], row["epoch"]) for row in rows] == [
        (5, 0.5),
        (10, 1.0),
        (15, 1.5),
        (20, 2.0),
    ]
    assert rows[-1]["accuracy"] > rows[0]["accuracy"]
    rates = [row["learning_rate"] for row in rows]
    np.testing.assert_allclose(rates, [0.1, 0.01, 0.001, 0.001], rtol=1e-6)
    assert rows == log.read(folder)
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1


def test_a_run_begins_with_its_settings_and_the_table_of_parameters(whole, tmp_path):
    text = (whole[0] / "start.txt").read_text()
    for words in ("\nupdate_interval  3\n", "first/kernel", "preconditioned"):
        assert words in text
    train(tmp_path, "sgd", steps=1)
    text = (tmp_path / "start.txt").read_text()
    assert "  weight_decay: 0.0001\n  schedule: kind cosine, power 0.9\n" in text


def test_a_run_ends_with_a_summary_and_is_not_run_again(whole, capsys):
    folder, rows = whole
    text = (folder / loop.SUMMARY).read_text()
    final = f"{rows[-1]['accuracy']:.4f}"
    assert text.startswith(f"jorge, seed 0: accuracy {final} after 20 steps\n")
    assert "s to compile it" in text
    gone = [{**row, "accuracy": None, "loss": None} for row in rows]
    assert "accuracy diverged after 20 steps" in loop.summarize("", gone, "accuracy")
    seen = []
    assert train(folder, on_batch=seen.append) == rows
    assert seen == []
    assert "is complete; remove it to run it again" in capsys.readouterr().out


def test_the_last_and_the_best_checkpoints_stay(whole):
    folder, rows = whole
    best = sorted(rows, key=lambda row: (row["accuracy"], row["step"]))[-2:]
    names = {int(p.name) for p in (folder / "checkpoints").iterdir()}
    assert 20 in names
    assert len(names) <= 3
    kept = sorted((r["accuracy"] for r in rows if r["step"] in names), reverse=True)
    assert kept[:2] == sorted((row["accuracy"] for row in best), reverse=True)


@pytest.mark.parametrize("name", [*OPTIMIZERS, "jorge/sgd-schedule", "sgd/thirds"])
def test_every_optimizer_trains(tmp_path, capsys, name):
    parts = (("first", 2.0),) if "whitening" in name else ()
    config = dataclasses.replace(toy_task.CONFIG, learning_rate_factors=parts)
    (row,) = train(tmp_path, name, steps=4, diagnose=True, config=config)
    assert np.isfinite(row["loss"])
    assert f"{name}, seed 0: compiling the step ... " in capsys.readouterr().err
    with_roots = name.partition("/")[0] not in ("sgd", "adamw")
    (events,) = tmp_path.glob("events.out.tfevents.*")
    assert (b"roots/first/kernel/condition" in events.read_bytes()) == with_roots
    roots = tmp_path / "roots.txt"
    assert roots.exists() == with_roots
    if with_roots:
        assert "2 parameters with roots" in roots.read_text()


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
    with pytest.raises(ValueError, match="holds another run: seed, steps differ"):
        train(tmp_path, seed=1, steps=5)
    seen = []
    rows = train(tmp_path, on_batch=seen.append)
    assert seen[0] == stopped  # it did not start again
    assert [row["step"] for row in rows] == [5, 10, 15, 20]
    assert_same_bits(saved_state(tmp_path, 20), saved_state(whole[0], 20))
    train(tmp_path / "other", seed=1)
    with pytest.raises(AssertionError):
        assert_same_bits(saved_state(tmp_path / "other", 20), saved_state(whole[0], 20))


@pytest.mark.slow
def test_several_devices():
    run_on_eight_devices("tests/examples/on_eight_devices.py")


def test_more_devices_than_there_are_is_an_error(tmp_path):
    config = dataclasses.replace(toy_task.CONFIG, batch_size=1024)
    with pytest.raises(ValueError, match="xla_force_host_platform_device_count=512"):
        train(tmp_path, config=config, devices=512)
    with pytest.raises(ValueError, match="batch of 16 cannot be shared by 5"):
        train(tmp_path, devices=5)


# The log and the flags.


def test_a_line_cut_short_and_rows_after_the_checkpoint_are_dropped(tmp_path):
    lines = [json.dumps({"step": step, "loss": None}) for step in (5, 10, 15)]
    (tmp_path / log.METRICS).write_text("\n".join(lines) + '\n{"step": 2')
    assert [row["step"] for row in log.read(tmp_path)] == [5, 10, 15]
    again = log.Log(tmp_path, after_step=10)
    again.write({"step": 15, "loss": None, "accuracy": 0.1})  # it has diverged
    again.close()
    assert [row["step"] for row in log.read(tmp_path)] == [5, 10, 15]
    assert log.read(tmp_path)[2] == {"step": 15, "loss": None, "accuracy": 0.1}


def test_fields_of_a_configuration_can_be_set():
    config = flags.override(toy_task.CONFIG, "batch_size=4")
    config = flags.override(config, "sgd.schedule.kind=polynomial")
    assert config.batch_size == 4
    assert config.sgd.schedule.kind == "polynomial"
    assert config.sgd.learning_rate == toy_task.CONFIG.sgd.learning_rate
    with pytest.raises(SystemExit, match="the fields are dataset, model"):
        flags.override(config, "batchsize=4")
