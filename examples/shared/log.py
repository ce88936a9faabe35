"""A run's metrics: one JSON object per line, and the same for TensorBoard."""

import json
import pathlib
from typing import Any

from tensorboardX import SummaryWriter

Row = dict[str, Any]
METRICS = "metrics.jsonl"


class Log:
    """Appends rows; a resumed run first drops the rows after its checkpoint."""

    def __init__(self, folder: pathlib.Path, after_step: int = 0):
        self._path = folder / METRICS
        self.rows = [row for row in read(folder) if row["step"] <= after_step]
        text = "".join(json.dumps(row) + "\n" for row in self.rows)
        temporary = self._path.with_suffix(".part")
        temporary.write_text(text)
        temporary.replace(self._path)
        self._board = SummaryWriter(str(folder), purge_step=after_step + 1)

    def write(self, row: Row) -> None:
        """Adds a row, which must have a "step"."""
        self.rows.append(row)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        for name, value in row.items():
            if name != "step":
                self._board.add_scalar(name, value, row["step"])
        self._board.flush()

    def close(self) -> None:
        """Ends TensorBoard's thread."""
        self._board.close()


def read(folder: pathlib.Path) -> list[Row]:
    """Returns the rows so far, without a last line that a kill cut short."""
    path = folder / METRICS
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
