"""The digits, and the workload on them."""

import itertools

import numpy as np

from examples.classification import train
from examples.shared import digits
from examples.shared.config import Schedule
from examples.shared.data import train_batches


def test_the_schedules_drop_at_thirds_of_the_run():
    config = digits.CONFIG
    task = train.make_task(config, seed=0)
    assert config.epochs * task.steps_per_epoch == 600
    assert config.sgd.schedule == config.adamw.schedule == Schedule("steps", (20, 40))
    assert task.steps_per_epoch * 20 == 200
    # Evaluations fall on refreshes of Jorge's roots, checkpoints on evaluations.
    assert config.eval_every % config.update_interval == 0
    assert config.checkpoint_every % config.eval_every == 0


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
