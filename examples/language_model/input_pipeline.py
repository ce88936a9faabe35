"""Bytes of the Python standard library's sources, which every machine has."""

import functools
import pathlib
import sysconfig

import numpy as np


@functools.cache
def text() -> tuple[np.ndarray, np.ndarray]:
    """Returns bytes to train on and to validate with: every tenth file is for that.

    The files are the modules at the top of the library, in the order of their names.
    """
    files = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    parts = [np.frombuffer(file.read_bytes(), np.uint8) for file in files]
    training = [part for number, part in enumerate(parts) if number % 10]
    return np.concatenate(training), np.concatenate(parts[::10])


def pieces(
    source: np.ndarray, rng: np.random.Generator, *shape: int, context: int
) -> np.ndarray:
    """Returns pieces of `context` + 1 bytes, [*shape, context + 1], anywhere in it."""
    starts = rng.integers(len(source) - context - 1, size=shape)
    return source[starts[..., None] + np.arange(context + 1)].astype(np.int32)
