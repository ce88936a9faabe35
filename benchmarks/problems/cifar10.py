"""CIFAR-10 from its official binary files."""

import functools
import os
import pathlib

import numpy as np


@functools.cache
def load(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images as bytes, [n, 32, 32, 3], and labels of the split "train" or "test"."""
    folder = pathlib.Path(os.environ.get("CIFAR10", "."))
    names = [f"data_batch_{i}.bin" for i in range(1, 6)]
    names = names if split == "train" else ["test_batch.bin"]
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise FileNotFoundError(
            "Let the environment variable CIFAR10 name the folder cifar-10-batches-bin "
            "of the binary version of CIFAR-10 (https://www.cs.toronto.edu/~kriz/"
            f"cifar.html); {missing} are missing in {folder}."
        )
    parts = [np.fromfile(folder / name, np.uint8) for name in names]
    records = np.concatenate(parts).reshape(-1, 1 + 3 * 32 * 32)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return images, records[:, 0].astype(np.int32)
