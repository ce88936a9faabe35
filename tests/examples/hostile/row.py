"""A row of the table, and what the families of files share."""

import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

Files = dict[str, bytes | str]  # by name: the content, or a word of NO_FILE
Read = Callable[[pathlib.Path], Any]

# What may be where a file is expected, and what the message says of it.
NO_FILE = {
    "pipe": "is a named pipe, not a regular file",
    "folder": "is a folder, not a regular file",
    "device": "is a device, not a regular file",
    "loop": "cannot be read",
    "huge": "has 1099511627776 bytes; such a file has at most",
    "missing": "is missing",
}


class Row(NamedTuple):
    """Files that a reader must refuse, or, as a control, accept."""

    name: str
    files: Files
    read: Read  # reads them from their folder
    fragments: tuple[str, ...] = ()  # of the message: file and field

    def make(self, folder: pathlib.Path) -> None:
        """Writes the files."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif content == "pipe":
                os.mkfifo(path)
            elif content == "folder":
                path.mkdir()
            elif content == "device":
                path.symlink_to("/dev/zero")
            elif content == "loop":
                path.symlink_to(path)
            elif content == "huge":  # sparse: it takes no disk
                with path.open("wb") as file:
                    file.truncate(2**40)


def no_files(family: str, files: Files, name: str, read: Read) -> list[Row]:
    """Returns rows in which something else is where a file is expected."""
    short = name.rpartition("/")[2]
    return [
        Row(f"{family}-{kind}", {**files, name: kind}, read, (short, said))
        for kind, said in NO_FILE.items()
    ]
