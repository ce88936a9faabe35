"""What makes timings repeat on a machine that others use, too."""

import ctypes
import os
import sys

# Of mallopt, in glibc's malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8


def steady() -> None:
    """For a study's `__main__` block: may start the whole process anew."""
    if take_one_core():
        # LAPACK's threads, as many as there were cores, came with the imports.
        os.execv(sys.executable, sys.orig_argv)
    keep_memory()


def take_one_core() -> bool:
    """Whether there were several: children, and what is executed next, inherit it.

    On several, XLA's CPU runtime was seen to hang in exact Shampoo's eigh.
    """
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) == 1:
        return False
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return True


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
