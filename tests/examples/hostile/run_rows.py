"""Files in the folder of a run."""

import pathlib
from typing import Any

from examples.shared import log, run_folder
from tests.examples.hostile.row import Row, after, no_files, replace, write

CONFIG = "config.json"
SETTINGS = {"optimizer": "jorge", "seed": 0}
WHOLE = b'{"optimizer": "jorge", "seed": 0}\n'
STEP = b'{"step": 5}\n'


def claim(folder: pathlib.Path) -> Any:
    run_folder.claim(folder, SETTINGS)


def lock(folder: pathlib.Path) -> Any:
    with run_folder.locked(folder):
        pass


CONFIGS = {
    "empty": b"",
    "zeros": bytes(100),
    "cut": WHOLE[:20],
    "list": b"[]",
    "deep": b"[" * 100_000,
    "not-utf8": b'{"seed": "\xff"}',
}
LOGS = {
    "cut-inside": (STEP + STEP[:5] + b"\n" + STEP, "line 2 is no row"),
    "zeros-inside": (STEP + bytes(9) + b"\n" + STEP, "line 2 is no row"),
    "no-step": (STEP + b"{}\n" + STEP, "line 2 is no row of metrics (it lacks"),
    "step-text": (b'{"step": "5"}\n' + STEP, "line 1 is no row of metrics (step must"),
    "list": (b"[5]\n" + STEP, "line 1 is no row of metrics (it must be an object"),
    "deep": (b"[" * 100_000 + b"\n" + STEP, "nested too deeply"),
}
REMEDY = "remove config.json and the same command resumes"
NOT_MISSING = ("pipe", "folder", "device", "huge")


def present(rows: list[Row]) -> list[Row]:
    """A file of a run may be missing: then the run begins."""
    return [row for row in rows if row.name.endswith(NOT_MISSING)]


ROWS = [
    *(
        Row(f"config-{name}", write(CONFIG, content), claim, (CONFIG, REMEDY))
        for name, content in CONFIGS.items()
    ),
    *present(no_files("config", write(CONFIG, WHOLE), CONFIG, claim)),
    *(
        Row(f"log-{name}", write(log.METRICS, content), log.read, (log.METRICS, said))
        for name, (content, said) in LOGS.items()
    ),
    *present(no_files("log", write(log.METRICS, STEP), log.METRICS, log.read)),
    Row(
        "lock-pipe",
        after(write("lock", b""), replace("lock", "pipe")),
        lock,
        ("lock is not a regular file",),
    ),
    Row("control-config", write(CONFIG, WHOLE), claim, ()),
    Row("control-no-config", lambda folder: None, claim, ()),
    Row("control-log", write(log.METRICS, STEP + STEP[:5]), log.read, ()),
    Row("control-lock", write("lock", b"1 on elsewhere\n"), lock, ()),
]
