"""A row of the table, and what several families of files share."""

import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

Make = Callable[[pathlib.Path], Any]


class Row(NamedTuple):
    """A file that a reader must refuse, or, as a control, accept."""

    name: str
    make: Make  # writes the file, and what belongs to it, to a folder
    read: Make  # reads it from there
    fragments: tuple[str, ...]  # of the message: file and field; none if accepted


def write(name: str, content: bytes) -> Make:
    """Returns what writes a file."""

    def make(folder: pathlib.Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    return make


def after(first: Make, *then: Make) -> Make:
    """Returns what makes one thing after the other."""

    def make(folder: pathlib.Path) -> None:
        for each in (first, *then):
            each(folder)

    return make


def replace(name: str, kind: str) -> Make:
    """Returns what puts something there that is no regular file, or a huge one."""

    def make(folder: pathlib.Path) -> None:
        path = folder / name
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "device":
            path.symlink_to("/dev/zero")
        elif kind == "loop":
            path.symlink_to(path)
        elif kind == "huge":  # sparse: it takes no disk
            with path.open("wb") as file:
                file.truncate(2**40)

    return make


# What the message of each says, besides the name of the file.
NO_FILE = {
    "pipe": "is a named pipe, not a regular file",
    "folder": "is a folder, not a regular file",
    "device": "is a device, not a regular file",
    "loop": "cannot be read",
    "huge": "has 1099511627776 bytes; such a file has at most",
    "missing": "is missing",
}


def no_files(family: str, make: Make, name: str, read: Make) -> list[Row]:
    """Returns rows in which something else is where a file is expected."""
    short = name.rpartition("/")[2]
    return [
        Row(f"{family}-{kind}", after(make, replace(name, kind)), read, (short, said))
        for kind, said in NO_FILE.items()
    ]
