"""The examples' data sets for classification, from small files of their layouts."""

import gzip
import hashlib
import itertools

import numpy as np
import pytest
from PIL import Image

from examples.classification import input_pipeline, train
from examples.shared import digits, files
from examples.shared.config import Schedule
from examples.shared.data import eval_batches, train_batches


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# The digits.


def test_digits_are_split_in_equal_shares_and_standardized():
    data = digits.load()
    for images, labels, count in (
        (data.train_images, data.train_labels, 1347),
        (data.test_images, data.test_labels, 450),
    ):
        assert (images.shape, images.dtype) == ((count, 8, 8, 1), np.float32)
        assert (labels.shape, labels.dtype) == ((count,), np.int32)
        np.testing.assert_allclose(np.bincount(labels) / count, 0.1, atol=0.005)
    np.testing.assert_allclose(data.train_images.mean(), 0, atol=1e-5)
    np.testing.assert_allclose(data.train_images.std(), 1, atol=1e-5)
    for one, other in zip(data, digits.load(), strict=True):
        np.testing.assert_array_equal(one, other)
    trained = {image.tobytes() for image in data.train_images}
    assert len(trained) > 1300
    assert not any(image.tobytes() in trained for image in data.test_images)


def test_the_schedules_of_digits_drop_at_thirds_of_the_run():
    config = digits.CONFIG
    task = train.make_task(config, seed=0)
    assert config.epochs * task.steps_per_epoch == 600
    assert task.steps_per_epoch == 10
    assert config.sgd.schedule == config.adamw.schedule == Schedule("steps", (20, 40))
    # Evaluations fall on refreshes of Jorge's roots, checkpoints on evaluations.
    assert config.eval_every % config.update_interval == 0
    assert config.checkpoint_every % config.eval_every == 0


def test_digits_are_shifted_by_a_pixel_at_most(monkeypatch):
    # Each pixel tells where it was, and each image which one it was.
    place = np.arange(64, dtype=np.float32).reshape(1, 8, 8, 1)
    images = place + 64 * np.arange(5, dtype=np.float32).reshape(5, 1, 1, 1)
    labels = np.arange(5, dtype=np.int32)
    few = digits.Digits(images, labels, images, labels)
    monkeypatch.setattr(digits, "load", lambda: few)
    data = digits.load_data()
    shifts = set()
    made = train_batches(data.train, data.augment, batch_size=5, seed=0)
    for batch in itertools.islice(made, 30):
        for image, label in zip(batch["image"][..., 0], batch["label"], strict=True):
            inner = image[1:-1, 1:-1] - 64 * label
            np.testing.assert_array_equal(np.diff(inner, axis=0), 8)
            np.testing.assert_array_equal(np.diff(inner, axis=1), 1)
            down, right = divmod(int(inner[0, 0]), 8)
            shifts.add((down - 1, right - 1))
    assert shifts == {(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)}


def test_subsets_and_sizes_are_checked():
    data = input_pipeline.load("digits", train_examples=100, test_examples=50)
    assert (len(data.train), len(data.test)) == (100, 50)
    assert (data.classes, data.shape) == (10, (8, 8, 1))
    for name, options, message in (
        ("digits", {"test_examples": 451}, "Asked for 451 examples of the 450"),
        ("digits", {"image_size": 16}, "digits have size 8 only"),
        ("mnist", {}, "got 'mnist'"),
    ):
        with pytest.raises(ValueError, match=message):
            input_pipeline.load(name, **options)


# Fashion-MNIST. Broken files are in the table of hostile ones.


def test_fashion_mnist_is_read(tmp_path, rng, monkeypatch):
    def idx(array):
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        return gzip.compress(head + array.tobytes())

    made = {}
    for prefix, count in (("train", 20), ("t10k", 10)):
        made[prefix] = rng.integers(0, 256, size=(count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", made[prefix]), ("labels-idx1", labels)):
            (tmp_path / f"{prefix}-{kind}-ubyte.gz").write_bytes(idx(array))
    data = input_pipeline.load("fashion-mnist", tmp_path)
    assert (len(data.train), len(data.test)) == (20, 10)
    assert (data.classes, data.shape) == (10, (28, 28, 1))
    image = data.test[3]["image"]
    np.testing.assert_array_equal(image[..., 0], made["t10k"][3])
    prepared = data.prepare(data.test[3])
    np.testing.assert_allclose(
        prepared["image"], (image / 255 - 0.2860) / 0.3530, rtol=1e-5, atol=1e-6
    )
    batch = next(train_batches(data.train, data.augment, batch_size=6, seed=0))
    assert batch["image"].shape == (6, 28, 28, 1)
    monkeypatch.setenv("FASHION_MNIST", str(tmp_path))
    again = input_pipeline.load("fashion-mnist").test[3]
    np.testing.assert_array_equal(again["image"], image)
    path = tmp_path / "t10k-labels-idx1-ubyte.gz"
    path.unlink()
    message = rf"{path.name} is missing: install .*FASHION_MNIST"
    with pytest.raises(FileNotFoundError, match=message):
        input_pipeline.load("fashion-mnist", tmp_path)


# CIFAR-10.


@pytest.fixture
def cifar(tmp_path, rng):
    """The folder and the checksums of files with ten images each."""
    checksums = {}
    for name in files.CIFAR10_SHA256:
        records = rng.integers(0, 256, size=(10, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(10)
        (tmp_path / name).write_bytes(records.tobytes())
        checksums[name] = hashlib.sha256(records.tobytes()).hexdigest()
    return tmp_path, checksums


def test_cifar_is_read(cifar, monkeypatch):
    folder, checksums = cifar
    data = input_pipeline.load_cifar10(folder, checksums=checksums)
    assert (len(data.train), len(data.test)) == (50, 10)
    assert (data.classes, data.shape) == (10, (32, 32, 3))
    raw = np.fromfile(folder / "data_batch_2.bin", np.uint8).reshape(10, 3073)
    example = data.train[14]
    assert example["label"] == 4
    for channel in range(3):
        plane = raw[4, 1 + 1024 * channel : 1 + 1024 * (channel + 1)].reshape(32, 32)
        np.testing.assert_array_equal(example["image"][..., channel], plane)
        assert not np.array_equal(example["image"][..., channel], plane.T)
    batch = next(train_batches(data.train, data.augment, batch_size=6, seed=0))
    assert batch["image"].shape == (6, 32, 32, 3)
    assert batch["image"].dtype == np.float32
    # The official files have other checksums; broken ones are in the hostile table.
    changed = r"data_batch_1\.bin has the SHA-256 .*not cee9"
    with pytest.raises(ValueError, match=changed):
        input_pipeline.load("cifar10", folder)
    (folder / "data_batch_3.bin").unlink()
    missing = r"data_batch_3\.bin is missing: .*kriz"
    with pytest.raises(FileNotFoundError, match=missing):
        input_pipeline.load_cifar10(folder, checksums=checksums)
    monkeypatch.delenv("CIFAR10", raising=False)
    with pytest.raises(FileNotFoundError, match="environment variable CIFAR10"):
        input_pipeline.load("cifar10")


def test_small_cifar_images_are_means_of_four_pixels(cifar):
    folder, checksums = cifar
    large, small = (
        input_pipeline.load_cifar10(folder, size, checksums) for size in (32, 16)
    )
    assert small.shape == (16, 16, 3)
    whole, half = large.test[3]["image"], small.test[3]["image"]
    expected = sum(whole[i::2, j::2].astype(float) for i in (0, 1) for j in (0, 1)) / 4
    np.testing.assert_array_equal(half, np.round(expected))
    assert not np.array_equal(half, whole[::2, ::2])
    with pytest.raises(ValueError, match="size 32 or 16, not 24"):
        input_pipeline.load("cifar10", folder, image_size=24)
    for data, size in ((large, 32), (small, 16)):  # crops out of a black border
        white = {"image": np.full((size, size, 3), 255, np.uint8), "label": 0}
        black = -input_pipeline.CIFAR10_MEAN / input_pipeline.CIFAR10_STD
        borders = set()
        for seed in range(100):
            image = data.augment(white, np.random.default_rng(seed))["image"]
            rows = (image == black).all(axis=(1, 2))
            borders.add((int(rows.sum()), bool(rows[0])))
        assert max(borders) == (size // 8, True)
        assert len(borders) == size // 4 + 1


# ImageNet.


@pytest.fixture
def imagenet(tmp_path):
    for split, count in (("train", 3), ("val", 2)):
        for number, name in enumerate(("n02", "n01", "n03")):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                color = (80 * number, 40 * index, 100)
                image = Image.new("RGB", (50, 40 + 10 * index), color)
                image.save(folder / f"{name}_{index}.JPEG")
    return tmp_path


def test_imagenet_is_read(imagenet):
    data = input_pipeline.load("imagenet", imagenet, image_size=32)
    assert (len(data.train), len(data.test)) == (9, 6)
    assert (data.classes, data.shape) == (3, (32, 32, 3))
    labels = [data.train[index]["label"] for index in range(9)]
    assert labels == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    reds = [int(data.train[index]["image"][0, 0, 0]) for index in (0, 3, 6)]
    np.testing.assert_allclose(reds, [80, 0, 160], atol=3)  # sorted: n01, n02, n03
    batch = next(train_batches(data.train, data.augment, batch_size=4, seed=0))
    assert batch["image"].shape == (4, 32, 32, 3)
    first, last = eval_batches(data.test, data.prepare, batch_size=4)
    assert first["image"].shape == last["image"].shape == (4, 32, 32, 3)
    np.testing.assert_array_equal(last["label"], [2, 2, -1, -1])
    pixel = data.test[0]["image"][0, 0] / 255
    expected = (pixel - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(first["image"][0, 0, 0], expected, rtol=1e-4)
    usual = input_pipeline.load("imagenet", imagenet)
    assert usual.prepare(usual.test[0])["image"].shape == usual.shape == (224, 224, 3)
    path = imagenet / "train" / "n02" / "n02_1.JPEG"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"n02/n02_1\.JPEG cannot be decoded"):
        next(train_batches(data.train, data.augment, batch_size=9, seed=0))


def test_imagenet_folders_that_differ_are_named(imagenet):
    def refused(kind, message):
        with pytest.raises(kind, match=message):
            input_pipeline.load("imagenet", imagenet)

    (imagenet / "val" / "n99").mkdir()
    refused(ValueError, r"same classes.*\['n99'\]")
    (imagenet / "train" / "n99").mkdir()
    refused(ValueError, "train/n99 has no images")
    for split in ("train", "val"):
        (imagenet / split / "n99").rmdir()
    assert input_pipeline.load("imagenet", imagenet).classes == 3
    (imagenet / "val").rename(imagenet / "test")
    refused(FileNotFoundError, "val is missing: ImageNet's")
    (imagenet / "val").mkdir()
    refused(ValueError, "val has no folders of classes")
    with pytest.raises(FileNotFoundError, match="needs the folder"):
        input_pipeline.load("imagenet")
