"""A whole run's batches of digits, made beforehand."""

from typing import NamedTuple

import numpy as np
from shared.digits import Digits, load

__all__ = ("Batches", "Digits", "load", "make_batches")


class Batches(NamedTuple):
    """A whole run's batches in order; the first axis counts the steps."""

    images: np.ndarray
    labels: np.ndarray


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
