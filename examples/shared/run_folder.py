"""The folder of a run: one process at a time, and files that are never half written."""

import contextlib
import json
import os
import pathlib
import socket
import stat
import warnings
from collections.abc import Iterator
from typing import Any

from examples.shared import checks

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

CONFIG = "config.json"
CONFIG_LIMIT = 2**20  # bytes
LOCK = "lock"


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """Makes the folder and keeps other runs out of it.

    The operating system holds the lock for this process and ends it with the process,
    however that ends; the file `lock` stays and means nothing by itself.

    Raises:
      ValueError: Another run is in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError(f"{path} is not a regular file: remove it.")
        _lock(handle, folder)
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: pathlib.Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(handle, 300, 0).decode(errors="replace").strip()
        raise ValueError(
            f"{folder} is in use by another run, process {owner or 'unknown'}: wait "
            "until it ends, stop it, or choose another folder with --out."
        ) from None
    except OSError as error:
        warnings.warn(
            f"{folder} is on a file system without locks ({error.strerror}): nothing "
            "keeps a second run out of it.",
            stacklevel=4,
        )


def write_whole(path: pathlib.Path, text: str) -> None:
    """Writes a file so that a crash leaves the old one or the new one, never a part."""
    temporary = path.with_name(f"{path.name}.part")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: pathlib.Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some file systems cannot
        pass
    finally:
        os.close(handle)


def claim(folder: pathlib.Path, settings: dict[str, Any]) -> None:
    """Writes config.json to the folder; refuses a folder that holds another run."""
    path = folder / CONFIG
    mine = json.loads(json.dumps(settings))
    if not path.exists():
        write_whole(path, json.dumps(mine, indent=1) + "\n")
        return
    try:
        other = checks.read_json(path, CONFIG_LIMIT)
        if not isinstance(other, dict):
            raise ValueError(f"{path} has no JSON object.")
    except ValueError as error:
        raise ValueError(
            f"{error} So it cannot be told which run is in {folder}. If it is this "
            f"one, remove {CONFIG} and the same command resumes; else choose another "
            "folder with --out."
        ) from error
    differing = [name for name in mine if mine[name] != other.get(name)]
    if differing:
        raise ValueError(
            f"{folder} holds another run: {', '.join(differing)} differ. "
            "Choose another folder with --out, or remove that one."
        )
