"""Images, Fashion-MNIST's idx files and CIFAR-10's records."""

import functools
import gzip
import hashlib
import io
import pathlib
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

from examples.shared import files, images
from tests.examples.hostile import coco_rows
from tests.examples.hostile.row import Files, Row, no_files

# Images.


def encode(image: Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG file that declares a size and has hardly any pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + data + chunk(b"IEND", b"")


def decode(folder: pathlib.Path) -> Any:
    return images.decode(folder / "a.jpg")


GRAY = Image.new("RGB", (60, 50), "gray")
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 60 50\n%%EndComments\n"
IMAGES = {
    "bomb": (png_header(100_000, 100_000), "cannot be decoded (Image size"),
    "large": (encode(Image.new("1", (9000, 8000)), "PNG"), "exceeds 67108864 pixels"),
    "thin": (encode(Image.new("1", (1, 500)), "PNG"), "sides 1x500 differ"),
    "no-pixels": (png_header(60, 50), "cannot be decoded"),
    "zero": (png_header(0, 50), "cannot be decoded"),
    "empty": (b"", "cannot be decoded"),
    "cut": (encode(GRAY, "JPEG")[:-40], "cannot be decoded"),
    "gif": (encode(GRAY, "GIF"), "cannot be decoded"),
    "postscript": (POSTSCRIPT, "cannot be decoded"),  # Pillow runs Ghostscript
}
TURNED = coco_rows.coco() | {coco_rows.IMAGE: encode(GRAY.resize((50, 60)), "PNG")}
IMAGE_ROWS = [
    *(
        Row(f"image-{name}", {"a.jpg": content}, decode, ("a.jpg", said))
        for name, (content, said) in IMAGES.items()
    ),
    *no_files("image", {}, "a.jpg", decode),
    *no_files("image-coco", coco_rows.coco(), coco_rows.IMAGE, coco_rows.read),
    Row("image-declared", TURNED, coco_rows.read, (coco_rows.JSON, "says 60x50")),
    Row("control-image-jpeg", {"a.jpg": encode(GRAY, "JPEG")}, decode),
    Row("control-image-png", {"a.jpg": encode(GRAY, "PNG")}, decode),
]

# Idx files.

IMAGES_IDX = "train-images-idx3-ubyte.gz"
LABELS_IDX = "train-labels-idx1-ubyte.gz"
COUNT = 10
ZEROS = gzip.compress(bytes(2**24), 1)


def idx(sizes: tuple[int, ...], data: bytes) -> bytes:
    head = bytes([0, 0, 8, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes)
    return gzip.compress(head + data)


def bomb(*sizes: int) -> bytes:
    """2 GiB of zeros after a header, in 9 MB."""
    return idx(sizes, b"") + 128 * ZEROS


def read_fashion_mnist(folder: pathlib.Path) -> Any:
    return files.read_fashion_mnist("train", folder)


FASHION_MNIST: Files = {
    IMAGES_IDX: idx((COUNT, 28, 28), bytes(COUNT * 784)),
    LABELS_IDX: idx((COUNT,), bytes(range(COUNT))),
}
# Three sizes whose product is 0 in 64 bits.
WRAPPING = (2**32 - 1, 2**31, 2**31)
IDX = {
    IMAGES_IDX: {
        "bomb": (bomb(COUNT, 28, 28), "more bytes of data"),
        "bomb-of-lies": (bomb(2**32 - 1, 28, 28), "has 4294967295 items"),
        "wraps": (idx(WRAPPING, b""), "has items of shape"),
        "other-items": (idx((40, 14, 14), bytes(7840)), "shape [14, 14]"),
        "none": (idx((0, 28, 28), b""), "has 0 items"),
        "too-few": (idx((11, 28, 28), bytes(7840)), "7840 bytes of data"),
        "too-many": (idx((9, 28, 28), bytes(7840)), "more bytes of data"),
        "dimensions": (idx((COUNT, 784), bytes(7840)), "begins with"),
        "head": (gzip.compress(b"\0\0\x08\3\0"), "begins with"),
        "cut": (idx((COUNT, 28, 28), bytes(7840))[:-6], "truncated"),
        "no-gzip": (bytes(7840), "truncated or broken"),
    },
    LABELS_IDX: {
        "label": (idx((COUNT,), b"\0" * 9 + b"\x0a"), "label 10 at 9"),
        "labels": (idx((9,), bytes(9)), "9 labels for 10 images"),
        "magic": (gzip.compress(b"\0\0\x0d\1" + bytes(14)), "with 00000d01, not with"),
        "labels-bomb": (bomb(COUNT), "more bytes of data"),
    },
}
IDX_ROWS = [
    *(
        Row(
            f"idx-{name}",
            {**FASHION_MNIST, file: content},
            read_fashion_mnist,
            (file, said),
        )
        for file, contents in IDX.items()
        for name, (content, said) in contents.items()
    ),
    *no_files("idx", FASHION_MNIST, LABELS_IDX, read_fashion_mnist),
    Row("control-idx", FASHION_MNIST, read_fashion_mnist),
]

# CIFAR-10.

BATCH = "test_batch.bin"


def records(label: int) -> bytes:
    array = np.zeros((3, 1 + 3 * 32 * 32), np.uint8)
    array[:, 0] = [0, 9, label]
    return array.tobytes()


def read_cifar10(folder: pathlib.Path, content: bytes) -> Any:
    checksum = hashlib.sha256(content).hexdigest()
    return files.read_cifar10("test", folder, {BATCH: checksum})


GOOD, BAD = records(1), records(77)
read_good = functools.partial(read_cifar10, content=GOOD)
read_bad = functools.partial(read_cifar10, content=BAD)
CIFAR_ROWS = [
    Row("cifar-label", {BATCH: BAD}, read_bad, (BATCH, "label 77 at 2")),
    Row("cifar-changed", {BATCH: BAD}, read_good, (BATCH, "SHA-256")),
    Row("cifar-cut", {BATCH: GOOD[:-1]}, read_good, (BATCH, "9218 bytes")),
    *no_files("cifar", {}, BATCH, read_good),
    Row("control-cifar", {BATCH: GOOD}, read_good),
]

ROWS = [*IMAGE_ROWS, *IDX_ROWS, *CIFAR_ROWS]
