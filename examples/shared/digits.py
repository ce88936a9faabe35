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
