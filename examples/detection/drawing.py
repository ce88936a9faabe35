"""A picture of what was found: boxes, masks and scores beside the truth."""

import pathlib
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pycocotools import mask as coco

from examples.detection.coco import CocoInstances

MINIMUM_SCORE = 0.3  # of a detection that is drawn
ACROSS = 4  # images in a row, each with its truth
COLORS = colormaps["tab10"].colors


def draw(
    path: pathlib.Path,
    split: CocoInstances,
    numbers: list[int],
    truth: dict[str, Any],
    results: list[dict[str, Any]],
    names: dict[int, str],
) -> None:
    """Draws images twice: with the truth, and with what was found.

    Args:
      path: Of the picture.
      split: Of the images.
      numbers: Of the images in the split, from 1.
      truth: As COCO's annotations.
      results: As COCO's results.
      names: Of the classes.
    """
    across = min(ACROSS, len(numbers))
    rows = -(-len(numbers) // across)
    figure = Figure(figsize=(2.3 * across * 2, 2.45 * rows), layout="constrained")
    grid = figure.subplots(rows, 2 * across, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for place, number in enumerate(numbers):
        row, column = divmod(place, across)
        image, key = split[number - 1]["image"], split.key(number)
        known = [a for a in truth["annotations"] if a["image_id"] == key]
        found = [
            result
            for result in results
            if result["image_id"] == key and result["score"] >= MINIMUM_SCORE
        ]
        for side, entries, title in ((0, known, "truth"), (1, found, "found")):
            axes = grid[row, 2 * column + side]
            _draw_image(axes, image, entries, names)
            if not row:
                axes.set_title(title, fontsize=9)
    figure.savefig(path, dpi=110)


def _draw_image(
    axes: Axes,
    image: np.ndarray,
    entries: list[dict[str, Any]],
    names: dict[int, str],
) -> None:
    shown = image.astype(np.float32) / 255
    for entry in entries:
        if "segmentation" in entry:
            mask = coco.decode(entry["segmentation"]).astype(bool)
            color = np.array(_color(entry), np.float32)
            shown = np.where(mask[..., None], 0.45 * shown + 0.55 * color, shown)
    axes.imshow(shown)
    for entry in entries:
        left, top, width, height = entry["bbox"]
        color = _color(entry)
        axes.add_patch(
            Rectangle((left - 0.5, top - 0.5), width, height, fill=False, color=color)
        )
        text = names[entry["category_id"]]
        if "score" in entry:
            text += f" {entry['score']:.2f}"
        axes.text(
            left - 0.5,
            top - 0.5,
            text,
            fontsize=6.5,
            color="white",
            va="bottom",
            bbox={"facecolor": color, "edgecolor": "none", "pad": 0.8},
        )


def _color(entry: dict[str, Any]) -> tuple[float, ...]:
    return COLORS[entry["category_id"] % len(COLORS)]
