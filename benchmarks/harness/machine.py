"""Makes timings repeatable on a machine that others use, too."""

import ctypes
import os
import sys

# Options of mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8


def steady() -> None:
    """Prepares the process of a study; call it first in the `__main__` block.

    On a machine with several cores it restarts the process on one of them.
    """
    if take_one_core():
        # The imports have already started one LAPACK thread for each core.
        os.execv(sys.executable, sys.orig_argv)
    keep_memory()


def take_one_core() -> bool:
    """Restricts the process and its children to one core; returns whether it had more.

    With several cores, XLA's CPU runtime was seen to hang in exact Shampoo's eigh.
    """
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) == 1:
        return False
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return True


def keep_memory() -> bool:
    """Keeps freed memory in the process; returns whether that is possible.

    XLA's CPU runtime allocates its temporaries in each call. By default glibc maps
    fresh pages for arrays this large, and the kernel clears each page when it is first
    touched: half of the time of an update, and no fault of the optimizer. GPUs use a
    memory pool instead.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    settings = {M_ARENA_MAX: 1, M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_TOP_PAD: 1 << 28}
    return all(mallopt(name, value) for name, value in settings.items())
