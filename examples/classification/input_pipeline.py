"""The data sets for classification, by name."""

import os
import pathlib
from collections.abc import Mapping

import numpy as np

from examples.shared import digits, files, images
from examples.shared.data import Arrays, Data, Example

FASHION_MNIST_MEAN = 255 * np.array([0.2860], np.float32)
FASHION_MNIST_STD = 255 * np.array([0.3530], np.float32)
CIFAR10_MEAN = 255 * np.array([0.4914, 0.4822, 0.4465], np.float32)
CIFAR10_STD = 255 * np.array([0.2470, 0.2435, 0.2616], np.float32)

Folder = str | os.PathLike | None


def load(
    name: str,
    folder: Folder = None,
    *,
    image_size: int | None = None,
    train_examples: int | None = None,
    test_examples: int | None = None,
) -> Data:
    """Loads "digits", "fashion-mnist", "cifar10" or "imagenet".

    Args:
      name: Which data set.
      folder: Where its files are. The digits need none; for Fashion-MNIST and CIFAR-10
        an environment variable may name it instead.
      image_size: The side of the images: any for ImageNet (224), 32 or 16 for CIFAR-10.
      train_examples: How many to keep, always the same ones; all by default.
      test_examples: The same for the test split.
    """
    if name == "digits":
        data = digits.load_data()
    elif name == "fashion-mnist":
        data = load_fashion_mnist(folder)
    elif name == "cifar10":
        data = load_cifar10(folder, image_size or 32)
    elif name == "imagenet":
        data = load_imagenet(folder, image_size or 224)
    else:
        raise ValueError(
            "The data sets are digits, fashion-mnist, cifar10 and imagenet, "
            f"got {name!r}."
        )
    if image_size not in (None, data.shape[0]):
        raise ValueError(f"The images of {name} have size {data.shape[0]} only.")
    return data.keep(train_examples, test_examples)


def load_fashion_mnist(folder: Folder = None) -> Data:
    """Loads Fashion-MNIST; training flips images and shifts them by up to 2 pixels."""

    def prepare(example: Example) -> Example:
        return _normalized(example, FASHION_MNIST_MEAN, FASHION_MNIST_STD)

    def augment(example: Example, rng: np.random.Generator) -> Example:
        image = images.random_shift(example["image"], 2, rng)
        return prepare({**example, "image": images.random_flip(image, rng)})

    return Data(
        train=Arrays(*files.read_fashion_mnist("train", folder)),
        test=Arrays(*files.read_fashion_mnist("test", folder)),
        augment=augment,
        prepare=prepare,
        classes=10,
        shape=(28, 28, 1),
    )


def load_cifar10(
    folder: Folder = None,
    image_size: int = 32,
    checksums: Mapping[str, str] = files.CIFAR10_SHA256,
) -> Data:
    """Loads CIFAR-10; training pads by four pixels, crops at random, and flips.

    At size 16 the images are means of 2x2 pixels and the padding is two pixels wide.
    """
    if image_size not in (16, 32):
        raise ValueError(f"The images of cifar10 have size 32 or 16, not {image_size}.")

    def read(split: str) -> Arrays:
        pixels, labels = files.read_cifar10(split, folder, checksums)
        return Arrays(_halve(pixels) if image_size == 16 else pixels, labels)

    def prepare(example: Example) -> Example:
        return _normalized(example, CIFAR10_MEAN, CIFAR10_STD)

    def augment(example: Example, rng: np.random.Generator) -> Example:
        image = images.random_crop(example["image"], image_size // 8, rng)
        return prepare({**example, "image": images.random_flip(image, rng)})

    return Data(
        train=read("train"),
        test=read("test"),
        augment=augment,
        prepare=prepare,
        classes=10,
        shape=(image_size, image_size, 3),
    )


def load_imagenet(folder: Folder, image_size: int = 224) -> Data:
    """Loads ImageNet's JPEG files from train/<class>/ and val/<class>/ of the folder.

    Training scales a random part of an image to the size and flips it. Evaluation
    scales the shorter side to 8/7 of the size and cuts out the middle.
    """
    if folder is None:
        raise FileNotFoundError("ImageNet needs the folder that has train/ and val/.")
    folder = pathlib.Path(folder)
    classes = files.read_class_names(folder / "train")
    differing = set(classes) ^ set(files.read_class_names(folder / "val"))
    if differing:
        raise ValueError(
            f"{folder}: train and val need folders of the same classes; only one of "
            f"them has {sorted(differing)[:5]}."
        )

    def prepare(example: Example) -> Example:
        image = images.resize_short_side(example["image"], round(image_size * 8 / 7))
        image = images.center_crop(image, image_size)
        return _normalized({**example, "image": image})

    def augment(example: Example, rng: np.random.Generator) -> Example:
        image = images.random_resized_crop(example["image"], image_size, rng)
        return _normalized({**example, "image": images.random_flip(image, rng)})

    return Data(
        train=files.ImageFolders(folder / "train", classes),
        test=files.ImageFolders(folder / "val", classes),
        augment=augment,
        prepare=prepare,
        classes=len(classes),
        shape=(image_size, image_size, 3),
    )


def _normalized(
    example: Example,
    mean: np.ndarray = images.IMAGENET_MEAN,
    std: np.ndarray = images.IMAGENET_STD,
) -> Example:
    return {**example, "image": images.normalize(example["image"], mean, std)}


def _halve(pixels: np.ndarray) -> np.ndarray:
    count, height, width, channels = pixels.shape
    squares = pixels.reshape(count, height // 2, 2, width // 2, 2, channels)
    return np.round(squares.mean((2, 4), dtype=np.float32)).astype(np.uint8)
