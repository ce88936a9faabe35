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
from tests.examples.hostile.row import Make, Row, after, no_files, write

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
    "text": (b"no image", "cannot be decoded"),
    "empty": (b"", "cannot be decoded"),
    "cut": (encode(GRAY, "JPEG")[:-40], "cannot be decoded"),
    "gif": (encode(GRAY, "GIF"), "cannot be decoded"),
    "postscript": (POSTSCRIPT, "cannot be decoded"),  # Pillow runs Ghostscript
}


def image_rows() -> list[Row]:
    rows = [
        Row(f"image-{name}", write("a.jpg", content), decode, ("a.jpg", said))
        for name, (content, said) in IMAGES.items()
    ]
    rows += no_files("image", write("a.jpg", encode(GRAY, "PNG")), "a.jpg", decode)
    rows += no_files("image-coco", coco_rows.coco(), coco_rows.IMAGE, coco_rows.read)
    declared = {"declared": GRAY.resize((50, 60)), "twice": GRAY.resize((120, 100))}
    for name, image in declared.items():
        make = after(coco_rows.coco(), write(coco_rows.IMAGE, encode(image, "PNG")))
        said = ("7.png is", coco_rows.JSON, "says 60x50")
        rows.append(Row(f"image-{name}", make, coco_rows.read, said))
    for kind in ("JPEG", "PNG"):
        make = write("a.jpg", encode(GRAY, kind))
        rows.append(Row(f"control-image-{kind}", make, decode, ()))
    return rows


# Idx files.

IMAGES_IDX = "train-images-idx3-ubyte.gz"
LABELS_IDX = "train-labels-idx1-ubyte.gz"
COUNT = 10


def idx(sizes: tuple[int, ...], data: bytes) -> bytes:
    return bytes([0, 0, 8, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + data


def fashion_mnist(pixels: bytes | None = None, labels: bytes | None = None) -> Make:
    """Returns what writes both files of a split, compressed."""
    if pixels is None:
        pixels = gzip.compress(idx((COUNT, 28, 28), bytes(COUNT * 784)))
    if labels is None:
        labels = gzip.compress(idx((COUNT,), bytes(range(COUNT))))
    return after(write(IMAGES_IDX, pixels), write(LABELS_IDX, labels))


def read_fashion_mnist(folder: pathlib.Path) -> Any:
    return files.read_fashion_mnist("train", folder)


ZEROS = gzip.compress(bytes(2**24), 1)


def bomb(header: bytes) -> bytes:
    """2 GiB of zeros after a header, in 9 MB."""
    return gzip.compress(header) + 128 * ZEROS


# Three sizes whose product is 0 in 64 bits.
WRAPPING = (2**32 - 1, 2**31, 2**31)
PIXELS = {
    "bomb": (bomb(idx((COUNT, 28, 28), b"")), "more bytes of data"),
    "bomb-of-lies": (bomb(idx((2**32 - 1, 28, 28), b"")), "has 4294967295 items"),
    "wraps": (gzip.compress(idx(WRAPPING, b"")), "has items of shape"),
    "wraps-to-items": (gzip.compress(idx((2**31, 28, 28), b"")), "2147483648 items"),
    "other-items": (gzip.compress(idx((40, 14, 14), bytes(7840))), "shape [14, 14]"),
    "none": (gzip.compress(idx((0, 28, 28), b"")), "has 0 items"),
    "too-few": (gzip.compress(idx((11, 28, 28), bytes(7840))), "7840 bytes of data"),
    "too-many": (gzip.compress(idx((9, 28, 28), bytes(7840))), "more bytes of data"),
    "dimensions": (gzip.compress(idx((COUNT, 784), bytes(7840))), "begins with"),
    "head": (gzip.compress(b"\0\0\x08\3\0"), "begins with"),
    "cut": (gzip.compress(idx((COUNT, 28, 28), bytes(7840)))[:-6], "truncated"),
    "no-gzip": (idx((COUNT, 28, 28), bytes(7840)), "truncated or broken"),
}


def idx_rows() -> list[Row]:
    read = read_fashion_mnist
    rows = [
        Row(f"idx-{name}", fashion_mnist(pixels=content), read, (IMAGES_IDX, said))
        for name, (content, said) in PIXELS.items()
    ]
    labels = {
        "label": (gzip.compress(idx((COUNT,), b"\0" * 9 + b"\x0a")), "label 10 at 9"),
        "labels": (gzip.compress(idx((9,), bytes(9))), "9 labels for 10 images"),
        "magic": (gzip.compress(b"\0\0\x0d\1" + bytes(14)), "with 00000d01, not with"),
        "labels-bomb": (bomb(idx((COUNT,), b"")), "more bytes of data"),
    }
    rows += [
        Row(f"idx-{name}", fashion_mnist(labels=content), read, (LABELS_IDX, said))
        for name, (content, said) in labels.items()
    ]
    rows += no_files("idx", fashion_mnist(), LABELS_IDX, read)
    rows.append(Row("control-idx", fashion_mnist(), read, ()))
    return rows


# CIFAR-10.

BATCH = "test_batch.bin"
RECORD = 1 + 3 * 32 * 32


def records(label: int) -> bytes:
    array = np.zeros((3, RECORD), np.uint8)
    array[:, 0] = [0, 9, label]
    return array.tobytes()


def read_cifar10(folder: pathlib.Path, content: bytes) -> Any:
    checksum = hashlib.sha256(content).hexdigest()
    return files.read_cifar10("test", folder, {BATCH: checksum})


def cifar_rows() -> list[Row]:
    good, bad = records(1), records(77)
    read = functools.partial(read_cifar10, content=good)
    read_bad = functools.partial(read_cifar10, content=bad)
    return [
        Row("cifar-label", write(BATCH, bad), read_bad, (BATCH, "label 77 at 2")),
        Row("cifar-changed", write(BATCH, bad), read, (BATCH, "SHA-256")),
        Row("cifar-cut", write(BATCH, good[:-1]), read, (BATCH, "9218 bytes")),
        *no_files("cifar", write(BATCH, good), BATCH, read),
        Row("control-cifar", write(BATCH, good), read, ()),
    ]


ROWS = [*image_rows(), *idx_rows(), *cifar_rows()]
