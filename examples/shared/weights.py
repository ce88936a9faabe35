"""Reads arrays by name from .safetensors and .npz files, checked before it allocates.

The checks are of the headers: sizes, types and places of the arrays must agree with the
size of the file. Pickles are never opened.
"""

import io
import math
import os
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from examples.shared import checks

LIMIT = 2**30  # bytes of arrays; torchvision's largest ResNet has 0.24e9
HEADER_LIMIT = 2**24  # bytes of the header of a .safetensors file
NPY_HEADER_LIMIT = 10_000  # bytes of the header of an array in an .npz file
MESSAGE_LIMIT = 400  # characters of a reason in an error
# Types of .safetensors files. NumPy has no bfloat16: its bits become float32's.
DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}


def read_arrays(path: checks.Path, limit: int = LIMIT) -> dict[str, np.ndarray]:
    """Reads all arrays of a .safetensors or .npz file by name.

    Args:
      path: Of the file.
      limit: Bytes that all arrays together have at most.
    """
    path = os.fspath(path)
    suffix = os.path.splitext(path)[1]
    read = {".npz": _read_npz, ".safetensors": _read_safetensors}.get(suffix)
    if read is None:
        raise ValueError(
            f"{path} is neither .safetensors nor .npz; "
            "write it with safetensors.torch.save_file(model.state_dict(), path)."
        )
    with checks.open_file(path, limit + HEADER_LIMIT, "write it again.") as file:
        try:
            return dict(read(file, limit))
        except Exception as error:  # zipfile and NumPy raise many kinds
            raise ValueError(
                f"{path} cannot be read ({str(error)[:MESSAGE_LIMIT]}): write it again."
            ) from error


# Safetensors: the length of the header in 8 bytes, the header in JSON, the arrays.


def _read_safetensors(file: BinaryIO, limit: int) -> Iterator[tuple[str, np.ndarray]]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, HEADER_LIMIT):
        raise ValueError(f"its header length {length} exceeds the file")
    header = checks.parse_json(file.read(length), "its header")
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    header.pop("__metadata__", None)
    places = sorted((_place(name, entry), name) for name, entry in header.items())
    end = 0
    for (begin, stop), name in places:
        if begin != end:
            raise ValueError(
                f"{checks.show(name)}: data_offsets begin at {begin}, but the array "
                f"before ends at {end}"
            )
        end = stop
    if end != size - 8 - length:
        raise ValueError(
            f"the data_offsets end at {end}, but the file has {size - 8 - length} "
            "bytes of data"
        )
    if end > limit:
        raise ValueError(f"its arrays have {end} bytes, more than {limit}")
    for (begin, stop), name in places:
        entry = header[name]
        array = np.frombuffer(file.read(stop - begin), DTYPES[entry["dtype"]])
        if entry["dtype"] == "BF16":
            array = (array.astype("<u4") << 16).view("<f4")
        yield name, array.reshape(entry["shape"])


def _place(name: str, entry: Any) -> tuple[int, int]:
    """Checks the entry of an array; returns where it begins and ends."""
    try:
        dtype = checks.text(entry, "dtype")
        if dtype not in DTYPES:
            known = ", ".join(DTYPES)
            raise ValueError(f"dtype is {checks.show(dtype)}, not one of {known}")
        for key, length in (("shape", None), ("data_offsets", 2)):
            values = checks.items(entry, key, length)
            if not all(type(value) is int and value >= 0 for value in values):
                raise ValueError(
                    f"{key} must have integers from 0 on, not {checks.show(values)}"
                )
        begin, end = entry["data_offsets"]
        needed = math.prod(entry["shape"]) * np.dtype(DTYPES[dtype]).itemsize
        if len(entry["shape"]) > 32 or end - begin != needed:
            raise ValueError(
                f"data_offsets {checks.show([begin, end])} do not fit the shape "
                f"{checks.show(entry['shape'])} of {dtype}"
            )
    except ValueError as error:
        raise ValueError(f"{checks.show(name)}: {error}") from None
    return begin, end


# Npz: a zip file of .npy files.


def _read_npz(file: BinaryIO, limit: int) -> Iterator[tuple[str, np.ndarray]]:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        names = [member.filename.removesuffix(".npy") for member in members]
        if len(set(names)) != len(names):
            raise ValueError("it has two arrays of one name")
        total = sum(member.file_size for member in members)
        if total > limit:
            raise ValueError(f"its arrays have {total} bytes, more than {limit}")
        for name, member in zip(names, members, strict=True):
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{checks.show(name)}: its compression is unknown")
            try:
                with archive.open(member) as stream:
                    array = _read_npy(stream, member.file_size)
            except Exception as error:
                raise ValueError(f"{checks.show(name)}: {error}") from error
            yield name, array


def _read_npy(stream: Any, size: int) -> np.ndarray:
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"the version {version} of .npy is unknown")
    prefix = stream.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(prefix, "little")
    if length > NPY_HEADER_LIMIT:
        raise ValueError(
            f"its header length is {length}, not {NPY_HEADER_LIMIT} or less"
        )
    read_header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    header = io.BytesIO(prefix + stream.read(length))
    shape, fortran, dtype = read_header(header, max_header_size=NPY_HEADER_LIMIT)
    if dtype.hasobject:
        raise ValueError(
            "its dtype is object, so it holds a pickle; a pickle may run any program "
            "and is not opened"
        )
    rest = size - stream.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != rest:
        raise ValueError(
            f"its shape {checks.show(shape)} of {dtype} does not fit the {rest} bytes "
            "of its data"
        )
    data = stream.read(rest + 1)  # to the end, where the checksum is compared
    if len(data) != rest:
        raise ValueError(f"its data has {len(data)} bytes, not {rest}")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
