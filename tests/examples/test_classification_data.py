"""The examples' data sets for classification, from small files of their layouts."""

import gzip
import hashlib

import numpy as np
import pytest
from PIL import Image

from examples.classification import input_pipeline
from examples.shared import files
from examples.shared.data import eval_batches, train_batches

BYTES = np.arange(10, dtype=np.uint8)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# The digits.


def test_digits_are_split_and_standardized():
    data = input_pipeline.load("digits")
    assert (len(data.train), len(data.test)) == (1347, 450)
    assert (data.classes, data.shape) == (10, (8, 8, 1))
    (batch,) = eval_batches(data.train, data.prepare, batch_size=1347)
    np.testing.assert_allclose(batch["image"].mean(), 0, atol=1e-5)
    np.testing.assert_allclose(batch["image"].std(), 1, atol=1e-5)
    example = data.train[0]
    augmented = [data.augment(example, np.random.default_rng(s)) for s in range(20)]
    assert len({one["image"].tobytes() for one in augmented}) > 5
    assert {one["label"] for one in augmented} == {example["label"]}


def test_subsets_and_sizes_are_checked():
    data = input_pipeline.load("digits", train_examples=100, test_examples=50)
    assert (len(data.train), len(data.test)) == (100, 50)
    with pytest.raises(ValueError, match="Asked for 451 examples of the 450"):
        input_pipeline.load("digits", test_examples=451)
    with pytest.raises(ValueError, match="digits have size 8 only"):
        input_pipeline.load("digits", image_size=16)
    with pytest.raises(ValueError, match="got 'mnist'"):
        input_pipeline.load("mnist")


# Fashion-MNIST.


def idx(array, magic=None):
    head = magic or bytes([0, 0, 8, array.ndim])
    return head + np.array(array.shape, ">u4").tobytes() + array.tobytes()


@pytest.fixture
def fashion_mnist(tmp_path, rng):
    for prefix, count in (("train", 20), ("t10k", 10)):
        pixels = rng.integers(0, 256, size=(count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            path = tmp_path / f"{prefix}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(idx(array)))
    return tmp_path


def test_fashion_mnist_is_read(fashion_mnist, monkeypatch):
    data = input_pipeline.load("fashion-mnist", fashion_mnist)
    assert (len(data.train), len(data.test)) == (20, 10)
    assert (data.classes, data.shape) == (10, (28, 28, 1))
    raw = gzip.decompress((fashion_mnist / "t10k-images-idx3-ubyte.gz").read_bytes())
    image = data.test[3]["image"]
    assert image.tobytes() == raw[16 + 3 * 784 : 16 + 4 * 784]
    assert image.tobytes() != raw[16 : 16 + 784]
    prepared = data.prepare(data.test[3])
    np.testing.assert_allclose(
        prepared["image"], (image / 255 - 0.2860) / 0.3530, rtol=1e-5, atol=1e-6
    )
    batch = next(train_batches(data.train, data.augment, batch_size=6, seed=0))
    assert batch["image"].shape == (6, 28, 28, 1)

    monkeypatch.setenv("FASHION_MNIST", str(fashion_mnist))
    again = input_pipeline.load("fashion-mnist").test[3]
    np.testing.assert_array_equal(again["image"], image)


def test_a_missing_idx_file_is_named(fashion_mnist):
    path = fashion_mnist / "t10k-labels-idx1-ubyte.gz"
    path.unlink()
    message = rf"{path.name} is missing: install .*FASHION_MNIST"
    with pytest.raises(FileNotFoundError, match=message):
        input_pipeline.load("fashion-mnist", fashion_mnist)
    with pytest.raises(FileNotFoundError, match="nowhere/train-images.* is missing"):
        input_pipeline.load("fashion-mnist", fashion_mnist / "nowhere")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(idx(BYTES))[:-12], "truncated or broken"),
        (b"no gzip", "truncated or broken"),
        (gzip.compress(idx(BYTES, b"\0\0\x0d\1")), "with 00000d01, not with 00000801"),
        (gzip.compress(b"\0\0\x08\1\0"), "begins with"),
        (gzip.compress(idx(BYTES)[:-2]), "8 bytes of data, but its header says 10"),
        (gzip.compress(idx(BYTES[:9])), "9 labels for 10 images"),
    ],
    # Of the bytes they would hold the time, and pytest's workers would not agree.
    ids=("cut short", "no gzip", "magic", "head", "data", "labels"),
)
def test_a_broken_idx_file_is_named(fashion_mnist, content, message):
    path = fashion_mnist / "t10k-labels-idx1-ubyte.gz"
    assert gzip.decompress(path.read_bytes()) == idx(BYTES)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        input_pipeline.load("fashion-mnist", fashion_mnist)
    assert path.name in str(error.value)


# CIFAR-10.


@pytest.fixture
def cifar(tmp_path, rng):
    """The folder and the checksums of files with ten images each."""
    for name in files.CIFAR10_SHA256:
        records = rng.integers(0, 256, size=(10, 3073), dtype=np.uint8)
        records[:, 0] = BYTES
        (tmp_path / name).write_bytes(records.tobytes())
    checksums = {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        for name in files.CIFAR10_SHA256
    }
    return tmp_path, checksums


def test_cifar_is_read(cifar):
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
    assert (
        small.augment(small.test[3], np.random.default_rng(0))["image"].shape
        == small.shape
    )
    with pytest.raises(ValueError, match="size 32 or 16, not 24"):
        input_pipeline.load("cifar10", folder, image_size=24)


@pytest.mark.parametrize("size", [32, 16])
def test_cifar_images_are_cropped_out_of_a_border(cifar, size):
    folder, checksums = cifar
    augment = input_pipeline.load_cifar10(folder, size, checksums).augment
    white = {"image": np.full((size, size, 3), 255, np.uint8), "label": 0}
    black = -input_pipeline.CIFAR10_MEAN / input_pipeline.CIFAR10_STD
    borders = set()
    for seed in range(100):
        image = augment(white, np.random.default_rng(seed))["image"]
        rows = (image == black).all(axis=(1, 2))
        borders.add((int(rows.sum()), bool(rows[0])))
    assert max(borders) == (size // 8, True)
    assert len(borders) == size // 4 + 1


def test_cifar_files_that_are_missing_cut_or_changed_are_named(cifar, monkeypatch):
    folder, checksums = cifar
    path = folder / "data_batch_3.bin"
    whole = path.read_bytes()

    def load():
        return input_pipeline.load_cifar10(folder, checksums=checksums)

    assert len(load().train) == 50
    path.write_bytes(whole[:-1])
    with pytest.raises(
        ValueError, match=r"data_batch_3\.bin has 30729 bytes.*truncated"
    ):
        load()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(ValueError, match=r"data_batch_3\.bin has the SHA-256"):
        load()
    path.write_bytes(whole)
    with pytest.raises(
        ValueError, match=r"data_batch_1\.bin has the SHA-256 .*not cee9"
    ):
        input_pipeline.load("cifar10", folder)
    path.unlink()
    with pytest.raises(
        FileNotFoundError, match=r"data_batch_3\.bin is missing: .*kriz"
    ):
        load()
    monkeypatch.delenv("CIFAR10", raising=False)
    with pytest.raises(FileNotFoundError, match="environment variable CIFAR10"):
        input_pipeline.load("cifar10")


# ImageNet.


@pytest.fixture
def imagenet(tmp_path, rng):
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
    image = data.test[0]["image"] / 255
    np.testing.assert_allclose(
        first["image"][0, 0, 0],
        (image[0, 0] - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225],
        rtol=1e-4,
    )


def test_imagenet_has_its_usual_size(imagenet):
    data = input_pipeline.load("imagenet", imagenet)
    assert data.shape == (224, 224, 3)
    assert data.prepare(data.test[0])["image"].shape == data.shape


def test_broken_imagenet_files_are_named(imagenet):
    data = input_pipeline.load("imagenet", imagenet, image_size=32)
    path = imagenet / "train" / "n02" / "n02_1.JPEG"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=r"n02/n02_1\.JPEG cannot be decoded"):
        next(train_batches(data.train, data.augment, batch_size=9, seed=0))
    path.write_bytes(whole)
    assert next(train_batches(data.train, data.augment, batch_size=9, seed=0))


def test_imagenet_folders_that_differ_are_named(imagenet):
    def load():
        return input_pipeline.load("imagenet", imagenet)

    (imagenet / "val" / "n99").mkdir()
    with pytest.raises(ValueError, match=r"same classes.*\['n99'\]"):
        load()
    (imagenet / "train" / "n99").mkdir()
    with pytest.raises(ValueError, match="train/n99 has no images"):
        load()
    for split in ("train", "val"):
        (imagenet / split / "n99").rmdir()
    assert load().classes == 3
    (imagenet / "val").rename(imagenet / "test")
    with pytest.raises(FileNotFoundError, match="val is missing: ImageNet's"):
        load()
    (imagenet / "val").mkdir()
    with pytest.raises(ValueError, match="val has no folders of classes"):
        load()
    with pytest.raises(FileNotFoundError, match="needs the folder"):
        input_pipeline.load("imagenet")
