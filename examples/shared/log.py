"""A run's metrics: one JSON object per line, and the same for TensorBoard."""

import json
import pathlib
from typing import Any

from tensorboardX import SummaryWriter

from examples.shared import checks
from examples.shared.run_folder import write_whole

Row = dict[str, Any]
METRICS = "metrics.jsonl"
METRICS_LIMIT = 2**30  # bytes


class Log:
    """Appends rows; a resumed run first drops the rows after its checkpoint."""

    def __init__(self, folder: pathlib.Path, after_step: int = 0):
        self._path = folder / METRICS
        self.rows = [row for row in read(folder) if row["step"] <= after_step]
        write_whole(self._path, "".join(json.dumps(row) + "\n" for row in self.rows))
        self._board = SummaryWriter(str(folder), purge_step=after_step + 1)

    def write(self, row: Row) -> None:
        """Adds a row, which must have a "step"."""
        self.rows.append(row)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        for name, value in row.items():
            if name != "step" and value is not None:  # of a run that has diverged
                self._board.add_scalar(name, value, row["step"])
        self._board.flush()

    def write_board(self, step: int, values: dict[str, float], folder: str) -> None:
        """Sends numbers to TensorBoard alone, below a folder of this name."""
        for name, value in values.items():
            self._board.add_scalar(f"{folder}/{name}", value, step)
        self._board.flush()

    def close(self) -> None:
        """Ends TensorBoard's thread."""
        self._board.close()


def read(folder: pathlib.Path) -> list[Row]:
    """Returns the rows so far, without a last line that a kill cut short.

    Raises:
      ValueError: Another line is no row.
    """
    path = folder / METRICS
    if not path.exists():
        return []
    lines = checks.read_bytes(path, METRICS_LIMIT).splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = checks.parse_json(line, "it")
            checks.integer(row, "step", 0)
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(
                f"{path}, line {number} is no row of metrics ({error}): remove the "
                "line, or the run's folder."
            ) from error
        rows.append(row)
    return rows
