"""Readers of Fashion-MNIST, CIFAR-10 and folders of images, with their checks."""

import gzip
import hashlib
import math
import os
import pathlib
import struct
import zlib
from collections.abc import Mapping

import numpy as np

from examples.shared import checks, images
from examples.shared.data import Example

CIFAR10_SHA256 = {
    "data_batch_1.bin": (
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"
    ),
    "data_batch_2.bin": (
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"
    ),
    "data_batch_3.bin": (
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"
    ),
    "data_batch_4.bin": (
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"
    ),
    "data_batch_5.bin": (
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"
    ),
    "test_batch.bin": (
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"
    ),
}
CIFAR10_REMEDY = (
    "set --data or the environment variable CIFAR10 to the folder cifar-10-batches-bin "
    "of the binary version of CIFAR-10 (https://www.cs.toronto.edu/~kriz/cifar.html)."
)
FASHION_MNIST_REMEDY = (
    "install Debian's package dataset-fashion-mnist, or set --data or the environment "
    "variable FASHION_MNIST to the folder with the four idx files of the original "
    "data set."
)
CIFAR10_RECORDS = 10_000  # in a file
IDX_LIMIT = 2**27  # bytes of an idx file; Fashion-MNIST's largest has 47e6
IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png")


def read_fashion_mnist(
    split: str, folder: str | os.PathLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Reads images [N, 28, 28, 1] as bytes, and labels, of "train" or "test"."""
    folder = pathlib.Path(
        folder or os.environ.get("FASHION_MNIST") or "/usr/share/datasets/fashion-mnist"
    )
    prefix = {"train": "train", "test": "t10k"}[split]
    pixels = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz", (28, 28))
    path = folder / f"{prefix}-labels-idx1-ubyte.gz"
    labels = read_idx(path, ())
    if len(labels) != len(pixels):
        raise ValueError(f"{path} has {len(labels)} labels for {len(pixels)} images.")
    return pixels[..., None], _check_labels(path, labels)


def read_idx(path: pathlib.Path, item: tuple[int, ...]) -> np.ndarray:
    """Reads a compressed idx file of bytes, as MNIST's are.

    Args:
      path: Of the file.
      item: The shape of one item; the file's header has the number of items before it.
    """
    dimensions = 1 + len(item)
    start = 4 + 4 * dimensions
    try:
        with (
            checks.open_file(path, IDX_LIMIT, FASHION_MNIST_REMEDY) as compressed,
            gzip.GzipFile(fileobj=compressed) as file,
        ):
            header = file.read(start)
            count = _check_idx_header(path, header, item)
            size = count * math.prod(item)
            data = file.read(size + 1)  # no more, whatever it unpacks to
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is truncated or broken ({error}): fetch it again."
        ) from error
    if len(data) != size:
        found = "more" if len(data) > size else len(data)
        raise ValueError(
            f"{path} has {found} bytes of data, but its header says {size}: fetch it "
            "again."
        )
    return np.frombuffer(data, np.uint8).reshape(count, *item)


def _check_idx_header(path: pathlib.Path, header: bytes, item: tuple[int, ...]) -> int:
    """Returns the number of items in an idx file."""
    dimensions = 1 + len(item)
    magic = bytes([0, 0, 8, dimensions])  # 8 stands for bytes
    if header[:4] != magic or len(header) < 4 + 4 * dimensions:
        raise ValueError(
            f"{path} begins with {header[:4].hex()}, not with {magic.hex()}: it is not "
            f"an idx file of bytes with {dimensions} dimensions."
        )
    # Python's integers: a product of three such sizes may not fit 64 bits.
    count, *shape = struct.unpack(f">{dimensions}I", header[4:])
    if tuple(shape) != item:
        raise ValueError(
            f"{path} has items of shape {shape} by its header, not {list(item)}: "
            f"{FASHION_MNIST_REMEDY}"
        )
    if not 0 < count * math.prod(item) <= IDX_LIMIT:
        raise ValueError(
            f"{path} has {count} items by its header: there must be one, and at most "
            f"{IDX_LIMIT} bytes."
        )
    return count


def _check_labels(path: pathlib.Path, labels: np.ndarray) -> np.ndarray:
    """Returns labels from 0 to 9 as int32."""
    if labels.max() > 9:
        index = int(np.argmax(labels > 9))
        raise ValueError(
            f"{path} has the label {labels[index]} at {index}: labels are from 0 to 9, "
            "fetch it again."
        )
    return labels.astype(np.int32)


def read_cifar10(
    split: str,
    folder: str | os.PathLike | None = None,
    checksums: Mapping[str, str] = CIFAR10_SHA256,
) -> tuple[np.ndarray, np.ndarray]:
    """Reads images [N, 32, 32, 3] as bytes, and labels, of "train" or "test"."""
    folder = folder or os.environ.get("CIFAR10")
    if folder is None:
        raise FileNotFoundError(f"CIFAR-10 needs a folder: {CIFAR10_REMEDY}")
    prefix = {"train": "data_batch", "test": "test_batch"}[split]
    names = [name for name in checksums if name.startswith(prefix)]
    parts, labels = [], []
    for name in names:
        path = pathlib.Path(folder) / name
        records = _read_records(path, checksums[name])
        channels_first = records[:, 1:].reshape(-1, 3, 32, 32)
        parts.append(channels_first.transpose(0, 2, 3, 1))
        labels.append(_check_labels(path, records[:, 0]))
    pixels = np.ascontiguousarray(np.concatenate(parts))
    return pixels, np.concatenate(labels)


def _read_records(path: pathlib.Path, checksum: str) -> np.ndarray:
    size = 1 + 3 * 32 * 32
    data = checks.read_bytes(path, CIFAR10_RECORDS * size, CIFAR10_REMEDY)
    if not data or len(data) % size:
        raise ValueError(
            f"{path} has {len(data)} bytes, which is not a multiple of {size}: it is "
            "truncated, unpack it again."
        )
    found = hashlib.sha256(data).hexdigest()
    if found != checksum:
        raise ValueError(
            f"{path} has the SHA-256 {found}, not {checksum}: fetch it again."
        )
    return np.frombuffer(data, np.uint8).reshape(-1, size)


class ImageFolders:
    """A split with a folder of images for each class, as ImageNet's."""

    def __init__(self, folder: pathlib.Path, classes: list[str]):
        self._folder = folder
        self._classes = classes
        self._files: list[str] = []
        labels = []
        for label, name in enumerate(classes):
            files = sorted(
                entry.name
                for entry in os.scandir(folder / name)
                if entry.name.lower().endswith(IMAGE_SUFFIXES)
            )
            if not files:
                raise ValueError(
                    f"{folder / name} has no images ({', '.join(IMAGE_SUFFIXES)}): "
                    "unpack it again, or remove the class from train and val."
                )
            self._files += files
            labels += [label] * len(files)
        self._labels = np.array(labels, np.int32)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Example:
        label = self._labels[index]
        path = self._folder / self._classes[label] / self._files[index]
        return {"image": images.decode(path), "label": label}


def read_class_names(folder: pathlib.Path) -> list[str]:
    """Returns the sorted names of the folders in a folder."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is missing: ImageNet's images belong in train/<class>/ and "
            "val/<class>/ of the folder given with --data."
        )
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    if not names:
        raise ValueError(f"{folder} has no folders of classes: unpack it again.")
    return names
