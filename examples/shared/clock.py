"""A line with a clock, for what takes long and shows nothing by itself."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator


@contextlib.contextmanager
def clock(what: str) -> Iterator[None]:
    """Shows what is under way, with the seconds so far, on the standard error stream.

    Where that stream is not a terminal, it gets the line at the start, and the seconds
    at the end.
    """
    start = time.perf_counter()
    done = threading.Event()
    redraws = sys.stderr.isatty()
    line = f"{what} ... "

    def show() -> None:
        sys.stderr.write(("\r" * redraws) + line)
        if redraws:
            sys.stderr.write(f"{time.perf_counter() - start:.0f} s")
        sys.stderr.flush()

    def tick() -> None:
        while not done.wait(1):
            show()

    show()
    thread = threading.Thread(target=tick, daemon=True)
    if redraws:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if redraws:
            thread.join()
        seconds = f"{time.perf_counter() - start:.1f} s\n"
        sys.stderr.write(("\r" + line) * redraws + seconds)
        sys.stderr.flush()
