"""Scikit-learn's digits: 1797 real 8x8 images, part of the package itself."""

from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class Digits(NamedTuple):
    """Standardized images of shape (N, 8, 8, 1) and their labels."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


class Batches(NamedTuple):
    """A whole run's batches in order; the first axis counts the steps."""

    images: np.ndarray
    labels: np.ndarray


def load() -> Digits:
    """Returns 1347 images to train on and 450 to test, split the same way always."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype(np.float32)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=450, stratify=labels, random_state=0
    )
    mean, std = train_images.mean(), train_images.std()
    return Digits(
        (train_images - mean) / std,
        train_labels.astype(np.int32),
        (test_images - mean) / std,
        test_labels.astype(np.int32),
    )


def make_batches(data: Digits, steps: int, batch_size: int, seed: int) -> Batches:
    """Draws shuffled epochs, each image shifted by up to one pixel each way."""
    rng = np.random.default_rng(seed)
    count = len(data.train_labels)
    epochs = -(-steps * batch_size // count)
    order = np.concatenate([rng.permutation(count) for _ in range(epochs)])
    order = order[: steps * batch_size]
    images = _shift(data.train_images[order], rng)
    labels = data.train_labels[order]
    return Batches(
        images.reshape(steps, batch_size, 8, 8, 1), labels.reshape(steps, batch_size)
    )


def _shift(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (8, 8), axis=(1, 2))
    down, right = rng.integers(0, 3, size=(2, len(images)))
    shifted = windows[np.arange(len(images)), down, right]
    return np.moveaxis(shifted, 1, -1)
