"""The demo runs from end to end, and its parts do as they say."""

import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import jorge_optax
from examples.digits import configs, train
from examples.shared import compare, digits, flags
from examples.shared.config import Schedule
from examples.shared.data import train_batches

ROOT = pathlib.Path(__file__).parents[2]
OPTIMIZERS = ("sgd", "adamw", "jorge")
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def test_the_demo_runs(tmp_path):
    process = subprocess.run(
        [sys.executable, "-m", "examples.digits.main", "--quick"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    table = process.stdout[process.stdout.index("optimizer  steps to 0.9900") :]
    # The row of each: one seed that misses the target in ten steps, or meets it then.
    rows = re.findall(r"^(\S+) +(?:miss|10)  .*\(0\.\d{4} to ", table, re.MULTILINE)
    assert rows == list(OPTIMIZERS)
    assert configs.NOTE in table
    assert "Wrote demo.png" in table
    image = (tmp_path / "demo.png").read_bytes()
    assert image.startswith(PNG_SIGNATURE)
    assert len(image) > 10_000
    folder = tmp_path / "runs" / "digits-quick"
    assert table.startswith((folder / "compare.txt").read_text())
    kept = json.loads((folder / "compare.json").read_text())
    assert kept["target"] == 0.99
    assert {name: len(seeds) for name, seeds in kept["runs"].items()} == dict.fromkeys(
        OPTIMIZERS, 1
    )


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Returns what the demo would run with these arguments: all that starts a run."""

    def ask(*arguments):
        calls = []

        def record(make_task, config, names, seeds, folder, **options):
            calls.append((names, seeds, str(folder), options))
            raise KeyboardInterrupt

        def record_one(task, config, run):
            calls.append((run.optimizer, run.seed, str(run.folder), run.steps))
            raise KeyboardInterrupt

        monkeypatch.setattr(compare, "compare", record)
        monkeypatch.setattr(flags.loop, "train", record_one)
        monkeypatch.setattr(sys, "argv", ["main", *arguments])
        with pytest.raises(SystemExit):
            flags.launch("", configs.CONFIGS, train.make_task, **configs.DEMO)
        (call,) = calls
        return call

    return ask


def test_without_arguments_it_compares_three_optimizers_and_seeds(asked):
    names, seeds, folder, options = asked()
    assert (tuple(names), seeds) == (OPTIMIZERS, [0, 1, 2])
    assert folder == "runs/digits"
    assert (options["target"], str(options["figure"])) == (0.99, "demo.png")
    assert options["steps"] is None


def test_quick_is_one_seed_of_ten_steps_in_a_folder_of_its_own(asked):
    names, seeds, folder, options = asked("--quick")
    assert (tuple(names), seeds, options["steps"]) == (OPTIMIZERS, [0], 10)
    assert folder == "runs/digits-quick"


def test_one_optimizer_may_be_named_instead(asked):
    assert asked("--optimizer", "sgd") == ("sgd", 0, "runs/digits/sgd-0", None)
    seed = ("--seeds", "7")
    assert asked("--optimizer", "sgd", *seed) == ("sgd", 7, "runs/digits/sgd-7", None)


def test_the_schedules_drop_at_thirds_of_the_run():
    config = digits.CONFIG
    task = train.make_task(config, seed=0)
    assert config.epochs * task.steps_per_epoch == 600
    assert config.sgd.schedule == config.adamw.schedule == Schedule("steps", (20, 40))
    assert task.steps_per_epoch * 20 == 200
    # Evaluations fall on refreshes of Jorge's roots, checkpoints on evaluations.
    assert config.eval_every % config.update_interval == 0
    assert config.checkpoint_every % config.eval_every == 0


@pytest.mark.parametrize(
    ("assignment", "folder"),
    [("dataset=cifar10", None), ("image_size=16", None), ("dataset=digits", ROOT)],
)
def test_other_data_is_refused(assignment, folder):
    config = flags.override(digits.CONFIG, assignment)
    with pytest.raises(ValueError, match=r"examples\.classification takes other data"):
        train.make_task(config, seed=0, folder=folder)


# The data.


def test_the_split_has_the_sizes_it_says():
    data = digits.load()
    assert data.train_images.shape == (1347, 8, 8, 1)
    assert data.train_labels.shape == (1347,)
    assert data.test_images.shape == (450, 8, 8, 1)
    assert data.test_labels.shape == (450,)
    for labels in (data.train_labels, data.test_labels):
        assert labels.dtype == np.int32
        shares = np.bincount(labels) / len(labels)
        assert len(shares) == 10
        np.testing.assert_allclose(shares, 0.1, atol=0.005)
    assert data.train_images.dtype == np.float32
    np.testing.assert_allclose(data.train_images.mean(), 0, atol=1e-5)
    np.testing.assert_allclose(data.train_images.std(), 1, atol=1e-5)


def test_the_split_is_always_the_same():
    first, second = digits.load(), digits.load()
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(first.train_labels[:450], first.test_labels)


def test_no_image_is_both_trained_on_and_tested():
    data = digits.load()
    trained = {image.tobytes() for image in data.train_images}
    assert len(trained) > 1300
    assert not any(image.tobytes() in trained for image in data.test_images)
    assert data.train_images[0].tobytes() in trained


def batches(seed, count=12):
    """Images and labels of the task's first batches, as arrays [count, 128, ...]."""
    task = train.make_task(digits.CONFIG, seed=seed)
    taken = list(itertools.islice(task.train(0), count))
    return [np.stack([batch[key] for batch in taken]) for key in ("image", "label")]


def test_batches_are_those_of_their_seed():
    images, labels = batches(seed=3)
    assert images.shape == (12, 128, 8, 8, 1)
    assert labels.shape == (12, 128)
    again, other = batches(seed=3), batches(seed=4)
    for one, same, another in zip((images, labels), again, other, strict=True):
        np.testing.assert_array_equal(one, same)
        assert not np.array_equal(one, another)


def test_an_epoch_of_batches_has_each_label_as_often_as_the_data():
    train_labels = digits.load().train_labels
    labels = batches(seed=0)[1].ravel()
    assert set(labels.tolist()) == set(range(10))
    epoch = np.bincount(labels[: len(train_labels)])
    np.testing.assert_array_equal(epoch, np.bincount(train_labels))
    beyond = np.bincount(labels)
    assert not np.array_equal(beyond, epoch)


def test_images_of_batches_are_shifted_by_a_pixel_at_most(monkeypatch):
    # Each pixel tells where it was, and each image which one it was.
    place = np.arange(64, dtype=np.float32).reshape(1, 8, 8, 1)
    images = place + 64 * np.arange(5, dtype=np.float32).reshape(5, 1, 1, 1)
    labels = np.arange(5, dtype=np.int32)
    monkeypatch.setattr(
        digits, "load", lambda: digits.Digits(images, labels, images, labels)
    )
    few = digits.load_data()
    shifts = set()
    made = train_batches(few.train, few.augment, batch_size=5, seed=0)
    for batch in itertools.islice(made, 30):
        for image, label in zip(batch["image"][..., 0], batch["label"], strict=True):
            inner = image[1:-1, 1:-1] - 64 * label
            np.testing.assert_array_equal(np.diff(inner, axis=0), 8)
            np.testing.assert_array_equal(np.diff(inner, axis=1), 1)
            down, right = divmod(int(inner[0, 0]), 8)
            shifts.add((down - 1, right - 1))
    assert shifts == {(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)}


# The table.


def run(*accuracy, step_ms=1.0, compile_seconds=1.0):
    """Makes the rows of a run with these accuracies, evaluated every ten steps."""
    return [
        {
            "step": step,
            "seconds": step * step_ms / 1000,
            "compile_seconds": compile_seconds,
            "accuracy": value,
        }
        for step, value in zip(itertools.count(10, 10), accuracy)  # noqa: B905
    ]


def first_crossing(rows, target):
    row = compare.crossing(rows, "accuracy", target)
    return row and row["step"]


def test_the_first_crossing_is_the_first_step_at_the_target_or_above():
    rising = run(0.5, 0.99, 0.98, 1.0)
    assert first_crossing(rising, 0.99) == 20
    assert first_crossing(rising, 0.991) == 40
    assert first_crossing(rising, 0.4) == 10


def test_a_run_that_stays_below_the_target_misses_it():
    assert first_crossing(run(0.5, 0.98, 0.9899), 0.99) is None
    assert first_crossing(run(), 0.99) is None


def test_the_table_has_a_row_for_each_optimizer():
    runs = {
        "sgd": [run(0.9, 0.98, step_ms=200.0), run(0.9, 0.99, step_ms=200.0)],
        "adamw": [run(0.9, 0.9, compile_seconds=2.04), run(0.8, 0.8)],
        "jorge": [
            run(0.99, 0.98, step_ms=324.0, compile_seconds=9.96),
            run(0.9, 1.0, step_ms=100.04, compile_seconds=9.96),
        ],
    }
    table = compare.table(compare.Comparison("accuracy", 0.99, runs))
    header, rule, *rows = (re.split(r" {2,}", line) for line in table.splitlines())
    assert header == [
        "optimizer",
        "steps to 0.9900",
        "seconds to it",
        "final accuracy",
        "ms per step",
        "compile s",
    ]
    assert set("".join(rule)) == {"-"}
    assert rows == [
        ["sgd", "miss 20", "miss 4", "0.9850 (0.9800 to 0.9900)", "200.0", "1.0"],
        ["adamw", "miss miss", "miss miss", "0.8500 (0.8000 to 0.9000)", "1.0", "1.5"],
        ["jorge", "10 20", "3 2", "0.9900 (0.9800 to 1.0000)", "212.0", "10.0"],
    ]
    starts = [line.rindex(line.split()[-1]) for line in table.splitlines()[1:]]
    assert len(set(starts)) == 1


# The citation, which no program reads.


def test_the_citation_is_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    (version,) = re.findall(r"^version: (\S+)$", citation, re.MULTILINE)
    assert version == jorge_optax.__version__
