"""Weights in .safetensors and .npz files."""

import io
import json
import pathlib
import struct
import zipfile
from typing import Any

import numpy as np

from examples.shared.weights import LIMIT, read_arrays
from tests.examples.hostile.row import Row, no_files

SAFE = "w.safetensors"
NPZ = "w.npz"


def read_safe(folder: pathlib.Path) -> Any:
    return read_arrays(folder / SAFE)


def read_npz(folder: pathlib.Path) -> Any:
    return read_arrays(folder / NPZ)


# Safetensors. Without changes: two arrays of two float32 each.


def entry(begin: Any, end: Any, **changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [begin, end]} | changes


def safetensors(header: Any, size: int = 16, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if length is None else length
    return struct.pack("<Q", length) + text + bytes(size)


def two(**changes: Any) -> bytes:
    """The second entry is changed."""
    return safetensors({"a": entry(0, 8), "b": entry(8, 16, **changes)})


HEADERS = {
    "length-huge": (safetensors({}, 0, 2**63), "header length 9223372036854775808"),
    "short": (b"\1\0\0", "header length"),
    "empty": (b"", "header length"),
    "not-json": (safetensors(b"{'a'"), "header is not JSON"),
    "deep": (safetensors(b'{"a":' * 100_000), "nested too deeply"),
    "twice": (safetensors(b'{"a": 1, "a": 2}'), "the name 'a' occurs twice"),
    "no-dtype": (safetensors({"a": {}}), "'a': it lacks the key 'dtype'"),
    "dtype": (two(dtype="F31"), "'b': dtype is 'F31', not one of"),
    "dtype-pickle": (two(dtype="O"), "'b': dtype is 'O', not one of"),
    "shape": (two(shape=[3]), "'b': data_offsets [8, 16] do not fit the shape [3]"),
    "shape-null": (two(shape=None), "'b': shape must be a list"),
    "shape-negative": (two(shape=[-1, -2]), "'b': shape must have integers"),
    "shape-wraps": (two(shape=[2**32, 2**32, 2]), "do not fit the shape"),
    "overlap": (two(data_offsets=[4, 12]), "'b': data_offsets begin at 4"),
    "hole": (safetensors({"a": entry(0, 8), "b": entry(12, 20)}, 20), "begin at 12"),
    "beyond": (safetensors({"a": entry(0, 8)}, 7), "data_offsets end at 8"),
    "backwards": (two(data_offsets=[16, 8]), "'b': data_offsets [16, 8] do not fit"),
    "offset-null": (two(data_offsets=None), "data_offsets must be a list of 2"),
}


# Npz.


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array)
    return stream.getvalue()


def npy_header(text: str, data: bytes = b"", version: int = 1) -> bytes:
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode() + data


def described(shape: Any, descr: str = "'<f4'", data: bytes = bytes(8)) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n"
    return npy_header(text, data)


def archive(
    *members: bytes,
    names: tuple[str, ...] = ("a.npy", "b.npy"),
    compression: int = zipfile.ZIP_DEFLATED,
) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as file:
        for name, content in zip(names, members):  # noqa: B905
            file.writestr(name, content)
    return stream.getvalue()


def patched(content: bytes, place: int, value: bytes) -> bytes:
    """Changes a field of the first entry of a zip file's directory."""
    start = content.index(b"PK\1\2") + place
    return content[:start] + value + content[start + len(value) :]


GOOD = npy(np.ones(2, np.float32))
PICKLE = npy(np.array([{}], object))
ZEROS = archive(npy(np.zeros(2**22, np.float32)))  # 16 MiB
UNPACKED = 24  # the place of a member's size in the directory
FLAGS = 8
ARCHIVES = {
    "pickle": (archive(PICKLE), "'a': its dtype is object, so it holds a pickle"),
    "pickle-second": (archive(GOOD, PICKLE), "'b': its dtype is object"),
    "pickle-field": (archive(described((1,), "[('x', '|O')]")), "dtype is object"),
    "bomb": (patched(ZEROS, UNPACKED, b"\xfe\xff\xff\xff"), f"more than {LIMIT}"),
    "bomb-of-lies": (patched(ZEROS, UNPACKED, b"\xc8\0\0\0"), "'a': Bad CRC-32"),
    "many": (archive(*[GOOD] * 2, names=("a.npy", "a")), "two arrays of one name"),
    "shape": (archive(described((3,))), "'a': its shape (3,) of float32 does not fit"),
    "shape-huge": (archive(described((2**60, 2**60))), "'a': its shape"),
    "shape-wraps": (archive(described((2**62, 4, 2))), "'a': its shape"),
    "shape-negative": (archive(described((-1, -2))), "'a': its shape"),
    "shape-text": (archive(described("'two'")), "'a': shape is not valid"),
    "dtype": (archive(described((2,), "'<f99'")), "'a': descr is not a valid dtype"),
    "version": (archive(npy_header("{}", version=3)), "'a': the version (3, 0)"),
    "header": (archive(npy_header("{}\n")), "'a': "),
    "header-code": (archive(npy_header("exit()\n")), "'a': "),
    "header-long": (archive(npy_header(" " * 60_000)), "'a': its header length is"),
    "header-huge": (archive(b"\x93NUMPY\2\0\xff\xff\xff\xff"), "is 4294967295"),
    "no-npy": (archive(b"text"), "'a': "),
    "empty": (b"", "is not a zip file"),
    "no-zip": (GOOD, "is not a zip file"),
    "cut": (archive(GOOD)[:-30], "is not a zip file"),
    "secret": (patched(archive(GOOD), FLAGS, b"\1\0"), "'a': "),
    "lzma": (archive(GOOD, compression=zipfile.ZIP_LZMA), "its compression is unknown"),
    "changed": (
        archive(GOOD, compression=zipfile.ZIP_STORED).replace(
            np.ones(2, np.float32).tobytes(), np.zeros(2, np.float32).tobytes()
        ),
        "'a': Bad CRC-32",
    ),
}


GOOD_NPZ = archive(GOOD, GOOD)
HALF = safetensors({"a": entry(0, 4, dtype="BF16")}, 4)
ROWS = [
    *(
        Row(f"safetensors-{name}", {SAFE: content}, read_safe, (SAFE, said))
        for name, (content, said) in HEADERS.items()
    ),
    *(
        Row(f"npz-{name}", {NPZ: content}, read_npz, (NPZ, said))
        for name, (content, said) in ARCHIVES.items()
    ),
    *no_files("safetensors", {}, SAFE, read_safe),
    *no_files("npz", {}, NPZ, read_npz),
    Row("control-safetensors", {SAFE: two()}, read_safe),
    Row("control-npz", {NPZ: GOOD_NPZ}, read_npz),
    Row("control-npz-large", {NPZ: ZEROS}, read_npz),
    Row("control-bfloat16", {SAFE: HALF}, read_safe),
]
