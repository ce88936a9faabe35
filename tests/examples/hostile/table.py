"""All rows, by name, and two readers that show what the bounds are for."""

import pathlib
from typing import Any

from tests.examples.hostile import coco_rows, data_rows, run_rows, weights_rows
from tests.examples.hostile.row import Row, write

FAMILIES = (coco_rows, data_rows, weights_rows, run_rows)
ROWS = {row.name: row for family in FAMILIES for row in family.ROWS}
HOSTILE = [name for name, row in ROWS.items() if row.fragments]
CONTROLS = [name for name, row in ROWS.items() if not row.fragments]


def allocate(folder: pathlib.Path) -> Any:
    return len(bytes(2**30))


POLYGON = coco_rows.annotation(segmentation=[[0, 0, 1e9, 0, 1e9, 1e9]])
UNCHECKED = {
    "unchecked-memory": Row("unchecked-memory", write("file", b""), allocate, ()),
    "unchecked-polygon": Row(
        "unchecked-polygon",
        coco_rows.coco(annotations=[POLYGON]),
        coco_rows.read_unchecked,
        (),
    ),
}
