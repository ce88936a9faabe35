"""Scikit-learn's digits (1797 real 8x8 images, part of the package), and a workload."""

from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from examples.shared import images
from examples.shared.config import SGD, AdamW, Config, Schedule
from examples.shared.data import Arrays, Data, Example

# SGD and AdamW had the same search: five learning rates (SGD: 0.05, 0.1, ... 0.8;
# AdamW: 0.001, 0.003, ... 0.1), each with a cosine and with a step decay in thirds, on
# 270 of the training images kept apart, with four seeds of their own. Of
# the settings within half a point of the best accuracy over the last third, each has
# the one that took the fewest steps to 98%. For both that was a step decay. The search
# ran on a ResNet of the same layers, with flax's default initialization and padding.
CONFIG = Config(
    dataset="digits",
    model="resnet8-thin",
    batch_size=128,
    epochs=60,
    sgd=SGD(0.1, 5e-4, Schedule("steps", drops=(20, 40))),
    adamw=AdamW(0.003, 0.01, Schedule("steps", drops=(20, 40))),
    eval_every=10,
    checkpoint_every=200,
)


class Digits(NamedTuple):
    """Standardized images of shape (N, 8, 8, 1) and their labels."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load() -> Digits:
    """Returns 1347 images to train on and 450 to test, always split the same way."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = pixels.reshape(-1, 8, 8, 1).astype(np.float32)
    train_images, test_images, train_labels, test_labels = train_test_split(
        pixels, labels, test_size=450, stratify=labels, random_state=0
    )
    mean, std = train_images.mean(), train_images.std()
    return Digits(
        (train_images - mean) / std,
        train_labels.astype(np.int32),
        (test_images - mean) / std,
        test_labels.astype(np.int32),
    )


def load_data() -> Data:
    """Returns the digits as a data set; training shifts them by up to a pixel."""
    arrays = load()

    def augment(example: Example, rng: np.random.Generator) -> Example:
        return {**example, "image": images.random_shift(example["image"], 1, rng)}

    return Data(
        train=Arrays(arrays.train_images, arrays.train_labels),
        test=Arrays(arrays.test_images, arrays.test_labels),
        augment=augment,
        prepare=dict,
        classes=10,
        shape=(8, 8, 1),
    )
