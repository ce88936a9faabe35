"""Files in the folder of a run."""

import pathlib
from typing import Any

from examples.shared import log, run_folder
from tests.examples.hostile.row import Row, no_files

CONFIG, LOG = "config.json", log.METRICS
WHOLE = b'{"optimizer": "jorge", "seed": 0}\n'
STEP = b'{"step": 5}\n'
REMEDY = "remove config.json and the same command resumes"


def claim(folder: pathlib.Path) -> Any:
    run_folder.claim(folder, {"optimizer": "jorge", "seed": 0})


def lock(folder: pathlib.Path) -> Any:
    with run_folder.locked(folder):
        pass


CONFIGS = {
    "empty": b"",
    "cut": WHOLE[:20],
    "list": b"[]",
    "deep": b"[" * 100_000,
    "not-utf8": b'{"seed": "\xff"}',
}
LOGS = {
    "cut-inside": (STEP + STEP[:5] + b"\n" + STEP, "line 2 is no row"),
    "no-step": (STEP + b"{}\n" + STEP, "line 2 is no row of metrics (it lacks"),
    "step-text": (b'{"step": "5"}\n' + STEP, "line 1 is no row of metrics (step must"),
    "list": (b"[5]\n" + STEP, "line 1 is no row of metrics (it must be an object"),
    "deep": (b"[" * 100_000 + b"\n" + STEP, "nested too deeply"),
}
OTHERS = [
    *no_files("config", {CONFIG: WHOLE}, CONFIG, claim),
    *no_files("log", {LOG: STEP}, LOG, log.read),
]
ROWS = [
    *(
        Row(f"config-{n}", {CONFIG: x}, claim, (CONFIG, REMEDY))
        for n, x in CONFIGS.items()
    ),
    *(
        Row(f"log-{n}", {LOG: x}, log.read, (LOG, said))
        for n, (x, said) in LOGS.items()
    ),
    # Where a file of a run is missing, the run begins.
    *(row for row in OTHERS if not row.name.endswith(("missing", "loop"))),
    Row("lock-pipe", {"lock": "pipe"}, lock, ("lock is not a regular file",)),
    Row("control-config", {CONFIG: WHOLE}, claim),
    Row("control-no-config", {}, claim),
    Row("control-log", {LOG: STEP + STEP[:5]}, log.read),
    Row("control-lock", {"lock": b"1 on elsewhere\n"}, lock),
]
