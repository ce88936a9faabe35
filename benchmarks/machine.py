"""What makes timings repeat on a machine that others use, too."""

import ctypes
import os

# Of mallopt, in glibc's malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8


def steady() -> None:
    """To be called before anything is timed."""
    take_one_core()
    keep_memory()


def take_one_core() -> None:
    """On several, XLA's CPU runtime was seen to hang in exact Shampoo's eigh."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # children inherit it


def keep_memory() -> bool:
    """Lets freed memory stay with the process; whether that could be done.

    XLA's CPU runtime allocates its temporaries anew for each call. By default glibc
    maps fresh pages for arrays this large, and the kernel clears each when it is
    touched: half of the time of an update, and not the optimizer's. GPUs have a pool.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    settings = {M_ARENA_MAX: 1, M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_TOP_PAD: 1 << 28}
    return all(mallopt(name, value) for name, value in settings.items())
