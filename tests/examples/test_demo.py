"""The demo runs from end to end, and what it is made of does what it says."""

import importlib
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
OPTIMIZERS = ("SGD", "AdamW", "Jorge")
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def digits():
    """Imports modules of the demo, which finds them beside itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples")
        yield lambda name: importlib.import_module(f"digits.{name}")


@pytest.fixture(scope="module")
def data(digits):
    return digits("data")


@pytest.fixture(scope="module")
def report(digits):
    return digits("report")


@pytest.fixture(scope="module")
def run(digits):
    """Makes a run of the accuracies, evaluated every ten steps."""

    def make(*accuracy, step_ms=1.0):
        count = len(accuracy)
        steps = [10 * (i + 1) for i in range(count)]
        return digits("training").Run(
            steps, list(accuracy), [1.0] * count, [step_ms] * count
        )

    return make


def test_the_demo_runs(tmp_path):
    figure = tmp_path / "demo.png"
    process = subprocess.run(
        [sys.executable, "examples/demo.py", "--quick", "--out", str(figure)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert lines[0].startswith("optimizer  steps to 99.0%")
    # The row of each: one seed that misses the target in ten steps, or meets it then.
    rows = [line for line in lines if re.search(r"  (miss|10)  .*%", line)]
    assert [row.split()[0] for row in rows] == list(OPTIMIZERS)
    assert f"Wrote {figure}" in process.stdout
    image = figure.read_bytes()
    assert image.startswith(PNG_SIGNATURE)
    assert len(image) > 10_000


# The data.


def test_the_split_has_the_sizes_it_says(data):
    digits = data.load()
    assert digits.train_images.shape == (1347, 8, 8, 1)
    assert digits.train_labels.shape == (1347,)
    assert digits.test_images.shape == (450, 8, 8, 1)
    assert digits.test_labels.shape == (450,)
    for labels in (digits.train_labels, digits.test_labels):
        assert labels.dtype == np.int32
        shares = np.bincount(labels) / len(labels)
        assert len(shares) == 10
        np.testing.assert_allclose(shares, 0.1, atol=0.005)
    assert digits.train_images.dtype == np.float32
    np.testing.assert_allclose(digits.train_images.mean(), 0, atol=1e-5)
    np.testing.assert_allclose(digits.train_images.std(), 1, atol=1e-5)


def test_the_split_is_always_the_same(data):
    first, second = data.load(), data.load()
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(first.train_labels[:450], first.test_labels)


def test_no_image_is_both_trained_on_and_tested(data):
    digits = data.load()
    trained = {image.tobytes() for image in digits.train_images}
    assert len(trained) > 1300
    assert not any(image.tobytes() in trained for image in digits.test_images)
    assert digits.train_images[0].tobytes() in trained


def test_batches_are_those_of_their_seed(data):
    digits = data.load()
    batches = data.make_batches(digits, 12, 128, seed=3)
    again = data.make_batches(digits, 12, 128, seed=3)
    other = data.make_batches(digits, 12, 128, seed=4)
    assert batches.images.shape == (12, 128, 8, 8, 1)
    assert batches.labels.shape == (12, 128)
    for one, same, another in zip(batches, again, other, strict=True):
        np.testing.assert_array_equal(one, same)
        assert not np.array_equal(one, another)


def test_an_epoch_of_batches_has_each_label_as_often_as_the_data(data):
    digits = data.load()
    batches = data.make_batches(digits, 12, 128, seed=0)
    labels = batches.labels.ravel()
    assert set(labels.tolist()) == set(range(10))
    epoch = np.bincount(labels[: len(digits.train_labels)])
    np.testing.assert_array_equal(epoch, np.bincount(digits.train_labels))
    beyond = np.bincount(labels)
    assert not np.array_equal(beyond, epoch)


def test_images_of_batches_are_shifted_by_a_pixel_at_most(data):
    # Each pixel tells where it was, and each image which one it was.
    place = np.arange(64, dtype=np.float32).reshape(1, 8, 8, 1)
    images = place + 64 * np.arange(5, dtype=np.float32).reshape(5, 1, 1, 1)
    labels = np.arange(5, dtype=np.int32)
    few = data.Digits(images, labels, images, labels)
    batches = data.make_batches(few, 30, 5, seed=0)
    shifts = set()
    for image, label in zip(
        batches.images.reshape(-1, 8, 8), batches.labels.ravel(), strict=True
    ):
        inner = image[1:-1, 1:-1] - 64 * label
        np.testing.assert_array_equal(np.diff(inner, axis=0), 8)
        np.testing.assert_array_equal(np.diff(inner, axis=1), 1)
        down, right = divmod(int(inner[0, 0]), 8)
        shifts.add((down - 1, right - 1))
    assert shifts == {(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)}


# The table.


def test_the_first_crossing_is_the_first_step_at_the_target_or_above(report, run):
    rising = run(0.5, 0.99, 0.98, 1.0)
    assert report.first_crossing(rising, 0.99) == 20
    assert report.first_crossing(rising, 0.991) == 40
    assert report.first_crossing(rising, 0.4) == 10


def test_a_run_that_stays_below_the_target_misses_it(report, run):
    assert report.first_crossing(run(0.5, 0.98, 0.9899), 0.99) is None
    assert report.first_crossing(run(), 0.99) is None


def test_the_table_has_a_row_for_each_optimizer(report, run):
    runs = {
        "SGD": [run(0.9, 0.98, step_ms=2.0), run(0.9, 0.99, step_ms=2.0)],
        "AdamW": [run(0.9, 0.9), run(0.8, 0.8)],
        "Jorge": [run(0.99, 0.98, step_ms=3.24), run(0.9, 1.0, step_ms=3.24)],
    }
    table = report.make_table(runs, {"SGD": 1.0, "AdamW": 2.04, "Jorge": 9.96}, 0.99)
    header, rule, *rows = (re.split(r" {2,}", line) for line in table.splitlines())
    assert header == [
        "optimizer",
        "steps to 99.0%",
        "(each seed)",
        "final accuracy",
        "ms per step",
        "compile s",
    ]
    assert set("".join(rule)) == {"-"}
    assert rows == [
        ["SGD", "not all", "miss 20", "98.5% (98.0% to 99.0%)", "2.0", "1.0"],
        ["AdamW", "not all", "miss miss", "85.0% (80.0% to 90.0%)", "1.0", "2.0"],
        ["Jorge", "15", "10 20", "99.0% (98.0% to 100.0%)", "3.2", "10.0"],
    ]
    starts = [line.rindex(line.split()[-1]) for line in table.splitlines()[1:]]
    assert len(set(starts)) == 1


def test_the_table_takes_the_median_time_of_a_step(report, run):
    slow_start = [run(0.9, step_ms=90.0), run(0.9, 0.9, step_ms=1.5)]
    table = report.make_table({"SGD": slow_start}, {"SGD": 1.0}, 0.99)
    assert table.splitlines()[-1].split()[-2] == "1.5"
