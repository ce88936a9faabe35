"""Checks of files that others made, and of the values in them.

Readers open every file by `open_file`, which never waits and never opens anything but a
regular file, and read no more bytes than their limit. The functions on fields raise a
`ValueError` that names the field; the caller adds the file and the record.
"""

import json
import math
import os
import reprlib
import stat
from typing import Any, BinaryIO

Path = str | os.PathLike[str]

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


# Files.


def open_file(path: Path, limit: int, remedy: str = "fetch it again.") -> BinaryIO:
    """Opens a regular file of at most `limit` bytes for reading.

    Args:
      path: Of the file; links are followed.
      limit: The largest size in bytes that is accepted.
      remedy: Ends the message for a file that is missing.
    """
    path = os.fspath(path)
    try:
        _check_regular(path, os.stat(path), limit)
        # Between the two calls another process may put a pipe there.
        file = open(path, "rb", opener=_open_without_waiting)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(f"{path} is missing: {remedy}") from error
    except OSError as error:
        raise type(error)(f"{path} cannot be read ({error.strerror}).") from error
    try:
        _check_regular(path, os.fstat(file.fileno()), limit)
    except BaseException:
        file.close()
        raise
    return file


def read_bytes(path: Path, limit: int, remedy: str = "fetch it again.") -> bytes:
    """Reads a regular file of at most `limit` bytes."""
    with open_file(path, limit, remedy) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1)
    if len(data) != size:
        raise ValueError(f"{os.fspath(path)} changed its size while it was read.")
    return data


def read_json(path: Path, limit: int, remedy: str = "fetch it again.") -> Any:
    """Reads a JSON file of at most `limit` bytes."""
    return parse_json(read_bytes(path, limit, remedy), os.fspath(path))


def parse_json(data: bytes, source: str) -> Any:
    """Parses JSON; a name that an object has twice is an error."""
    try:
        return json.loads(data, object_pairs_hook=_object)
    except RecursionError as error:
        raise ValueError(f"{source} is JSON that is nested too deeply.") from error
    except ValueError as error:  # of the JSON, or of its encoding
        raise ValueError(f"{source} is not JSON, or truncated ({error}).") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {show(name)} occurs twice in an object")
            seen.add(name)
    return result


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_regular(path: str, status: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise ValueError(f"{path} is {kind}, not a regular file.")
    if status.st_size > limit:
        raise ValueError(
            f"{path} has {status.st_size} bytes; such a file has at most {limit}."
        )


# Fields of JSON objects.


def field(record: Any, key: str) -> Any:
    """Returns the value of a key."""
    if not isinstance(record, dict):
        raise ValueError(f"it must be an object, not {show(record)}")
    if key not in record:
        raise ValueError(f"it lacks the key {key!r}")
    return record[key]


def integer(
    record: Any, key: str, low: int | None = None, high: int | None = None
) -> int:
    """Returns a field that is an integer, from `low` to `high`."""
    value = field(record, key)
    if type(value) is not int:  # a bool is none
        raise ValueError(f"{key} must be an integer, not {show(value)}")
    _check_range(value, key, low, high)
    return value


def number(record: Any, key: str, low: float | None = None) -> float:
    """Returns a field that is a finite number, at least `low`."""
    value = field(record, key)
    if not is_finite(value):
        raise ValueError(f"{key} must be a finite number, not {show(value)}")
    _check_range(value, key, low, None)
    return value


def text(record: Any, key: str) -> str:
    """Returns a field that is text, and not empty."""
    value = field(record, key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} must be text, not {show(value)}")
    return value


def items(record: Any, key: str, length: int | None = None) -> list:
    """Returns a field that is a list, of that length if one is given."""
    value = field(record, key)
    if not isinstance(value, list) or length not in (None, len(value)):
        size = "" if length is None else f" of {length}"
        raise ValueError(f"{key} must be a list{size}, not {show(value)}")
    return value


def is_finite(value: Any) -> bool:
    """Returns whether a value is an int or a float, and finite as a float."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:  # an int beyond the floats
        return False


def show(value: Any) -> str:
    """Returns a short text for any value, however long it is."""
    return _SHORT.repr(value)


def _check_range(value: float, key: str, low: float | None, high: float | None) -> None:
    if (low is not None and value < low) or (high is not None and value > high):
        least = "" if low is None else f" at least {low}"
        most = "" if high is None else f" at most {high}"
        both = " and" if least and most else ""
        raise ValueError(f"{key} must be{least}{both}{most}, not {show(value)}")


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        # Decimal digits of a very long int are refused by Python itself.
        return super().repr_int(x, level) if x.bit_length() < 256 else "a huge integer"


_SHORT = _Short()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxother = 60
