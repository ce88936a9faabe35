"""The examples' data sets for classification, from small files of their layouts.

Broken files are in the table of hostile ones.
"""

import gzip
import hashlib

import numpy as np
import pytest
from PIL import Image

from examples.classification import input_pipeline
from examples.shared import digits, files
from examples.shared.data import eval_batches, train_batches


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_digits_are_split_in_equal_shares_and_standardized():
    data = digits.load()
    for images, labels, count in (
        (data.train_images, data.train_labels, 1347),
        (data.test_images, data.test_labels, 450),
    ):
        assert (images.shape, images.dtype) == ((count, 8, 8, 1), np.float32)
        np.testing.assert_allclose(np.bincount(labels) / count, 0.1, atol=0.005)
    np.testing.assert_allclose(data.train_images.mean(), 0, atol=1e-5)
    np.testing.assert_allclose(data.train_images.std(), 1, atol=1e-5)
    trained = {image.tobytes() for image in data.train_images}
    assert len(trained) > 1300
    assert not any(image.tobytes() in trained for image in data.test_images)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digits", {"test_examples": 451}, "Asked for 451 examples of the 450"),
        ("digits", {"image_size": 16}, "digits have size 8 only"),
        ("mnist", {}, "got 'mnist'"),
        ("cifar10", {}, "environment variable CIFAR10"),
        ("cifar10", {"folder": ".", "image_size": 24}, "size 32 or 16, not 24"),
        ("imagenet", {}, "needs the folder"),
    ],
)
def test_what_cannot_be_loaded_is_refused(monkeypatch, name, options, message):
    monkeypatch.delenv("CIFAR10", raising=False)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        input_pipeline.load(name, **options)


def test_fashion_mnist_is_read(tmp_path, rng, monkeypatch):
    def idx(array):
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        return gzip.compress(head + array.tobytes())

    for prefix, count in (("train", 20), ("t10k", 10)):
        pixels = rng.integers(0, 256, size=(count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            (tmp_path / f"{prefix}-{kind}-ubyte.gz").write_bytes(idx(array))
    monkeypatch.setenv("FASHION_MNIST", str(tmp_path))
    data = input_pipeline.load("fashion-mnist")
    assert (len(data.train), len(data.test)) == (20, 10)
    assert (data.classes, data.shape) == (10, (28, 28, 1))
    example = data.test[3]
    assert example["label"] == 3
    np.testing.assert_array_equal(example["image"][..., 0], pixels[3])
    expected = (example["image"] / 255 - 0.2860) / 0.3530
    found = data.prepare(example)["image"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    path = tmp_path / "t10k-labels-idx1-ubyte.gz"
    path.unlink()
    message = rf"{path.name} is missing: install .*FASHION_MNIST"
    with pytest.raises(FileNotFoundError, match=message):
        input_pipeline.load("fashion-mnist", tmp_path)


def test_cifar_is_read_and_halved(tmp_path, rng):
    checksums = {}
    for name in files.CIFAR10_SHA256:
        records = rng.integers(0, 256, size=(10, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(10)
        (tmp_path / name).write_bytes(records.tobytes())
        checksums[name] = hashlib.sha256(records.tobytes()).hexdigest()
    data = input_pipeline.load_cifar10(tmp_path, checksums=checksums)
    assert (len(data.train), len(data.test)) == (50, 10)
    assert (data.classes, data.shape) == (10, (32, 32, 3))
    raw = np.fromfile(tmp_path / "data_batch_2.bin", np.uint8).reshape(10, 3073)
    example = data.train[14]
    assert example["label"] == 4
    image = raw[4, 1:].reshape(3, 32, 32).transpose(1, 2, 0)
    np.testing.assert_array_equal(example["image"], image)
    assert not np.array_equal(example["image"], image.transpose(1, 0, 2))
    small = input_pipeline.load_cifar10(tmp_path, 16, checksums)
    half = small.train[14]["image"]
    expected = sum(image[i::2, j::2].astype(float) for i in (0, 1) for j in (0, 1)) / 4
    np.testing.assert_array_equal(half, np.round(expected))
    batch = next(train_batches(small.train, small.augment, batch_size=6, seed=0))
    assert batch["image"].shape == (6, 16, 16, 3)
    # The official files have other checksums.
    with pytest.raises(ValueError, match=r"data_batch_1\.bin has the SHA-256 .*cee9"):
        input_pipeline.load("cifar10", tmp_path)


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
    assert input_pipeline.load("imagenet", imagenet).shape == (224, 224, 3)
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
    (imagenet / "val").rename(imagenet / "test")
    refused(FileNotFoundError, "val is missing: ImageNet's")
    (imagenet / "val").mkdir()
    refused(ValueError, "val has no folders of classes")
