"""COCO's files of instances: read, checked, and turned into masks.

Everything is checked before pycocotools gets it: that library trusts its input, and a
polygon with a coordinate of 1e9 ends the process.
"""

import pathlib
from typing import Any, NamedTuple

import numpy as np

from examples.shared import checks, images

JSON_LIMIT = 2**30  # bytes; the largest of COCO 2017 has 0.47e9
# The outlines of an instance, in pixels, over height + width of its image. pycocotools
# allocates 80 bytes for each pixel of an outline.
MAX_OUTLINE = 100


class Picture(NamedTuple):
    """An image that the file lists."""

    file_name: str
    height: int
    width: int


class Annotation(NamedTuple):
    """An instance in an image; its segmentation is checked when it is used."""

    name: str  # for errors
    picture: int
    category: int
    area: float
    segmentation: Any
    box: tuple[float, ...] | None = None  # left, top, width, height
    crowd: bool = False


def read_instances(
    path: pathlib.Path, remedy: str
) -> tuple[dict[int, Picture], list[Annotation]]:
    """Returns the images by id, and the annotations, of a file of instances.

    Args:
      path: Of the file.
      remedy: Ends the message if it is missing.
    """
    content = checks.read_json(path, JSON_LIMIT, remedy)
    name = "the file"
    try:
        records = checks.items(content, "images")
        pictures: dict[int, Picture] = {}
        for index, record in enumerate(records):
            name = f"images[{index}]"
            key = checks.integer(record, "id")
            if key in pictures:
                raise ValueError(f"id {key} is another image's too")
            pictures[key] = _picture(record)
        name = "the file"
        records = checks.items(content, "annotations")
        annotations = []
        for index, record in enumerate(records):
            name = _name(record, index)
            annotations.append(_annotation(record, name))
            if annotations[-1].picture not in pictures:
                raise ValueError(
                    f"image_id is {annotations[-1].picture}, which is not in images"
                )
    except ValueError as error:
        raise ValueError(
            f"{path} is not laid out as COCO's instances: {name}: {error}."
        ) from error
    return pictures, annotations


def _picture(record: Any) -> Picture:
    height = checks.integer(record, "height", 1, images.MAX_PIXELS)
    width = checks.integer(record, "width", 1, images.MAX_PIXELS // height)
    return Picture(checks.text(record, "file_name"), height, width)


def _annotation(record: Any, name: str) -> Annotation:
    box = None
    if "bbox" in record:
        box = checks.items(record, "bbox", 4)
        if not all(map(checks.is_finite, box)) or min(box[2:]) < 0:
            raise ValueError(
                f"bbox must have finite numbers, not {checks.show(box)}, and no "
                "negative width or height"
            )
    crowd = "iscrowd" in record and checks.integer(record, "iscrowd", 0, 1) == 1
    return Annotation(
        name,
        checks.integer(record, "image_id"),
        checks.integer(record, "category_id"),
        checks.number(record, "area", 0),
        checks.field(record, "segmentation"),
        None if box is None else tuple(map(float, box)),
        crowd,
    )


def _name(record: Any, index: int) -> str:
    if not isinstance(record, dict):
        raise ValueError(f"annotations[{index}] must be an object")
    key = record.get("id")
    return f"annotation {key}" if type(key) is int else f"annotations[{index}]"


# Masks.


def rasterize(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Turns polygons or RLE into a mask, bool [height, width].

    Args:
      segmentation: A list of polygons [x, y, x, y, ...], or {"size", "counts"}.
      height: Of the image.
      width: Of the image.

    Raises:
      ValueError: The segmentation is no such thing, or not of this image.
    """
    if isinstance(segmentation, dict):
        return _from_run_lengths(segmentation, height, width)
    polygons = check_polygons(segmentation, height, width)
    try:
        from pycocotools import mask as coco
    except ImportError as error:
        raise ImportError(
            "COCO's masks need pycocotools: pip install pycocotools."
        ) from error
    encoded = coco.merge(coco.frPyObjects(polygons, height, width))
    return coco.decode(encoded).astype(bool)


def check_polygons(polygons: Any, height: int, width: int) -> list[list[float]]:
    """Checks all that pycocotools would trust: types, places and length of outlines.

    Coordinates may lie outside of the image by its height or width. A polygon of two
    points has no area, and pycocotools takes it for a box: it is left out.
    """
    if not isinstance(polygons, list) or not polygons:
        raise ValueError(
            f"segmentation must be polygons or RLE, not {checks.show(polygons)}"
        )
    outline = 0.0
    for index, polygon in enumerate(polygons):
        name = f"polygon {index} of segmentation"
        if not isinstance(polygon, list) or len(polygon) < 4 or len(polygon) % 2:
            raise ValueError(
                f"{name} must be a list of three points or more, x and y in turn, not "
                f"{checks.show(polygon)}"
            )
        if not all(map(checks.is_finite, polygon)):
            wrong = next(value for value in polygon if not checks.is_finite(value))
            raise ValueError(
                f"{name} has the coordinate {checks.show(wrong)}, which is no finite "
                "number"
            )
        points = np.array(polygon, np.float64).reshape(-1, 2)
        size = np.array([width, height])
        outside = (points < -size) | (points > 2 * size)
        if outside.any():
            raise ValueError(
                f"{name} has the coordinate {points[outside][0]:g}, far outside of the "
                f"image of {width}x{height}"
            )
        steps = np.abs(points - np.roll(points, 1, axis=0)).max(axis=1)
        outline += float(np.ceil(steps + 1).sum())
    if outline > MAX_OUTLINE * (height + width):
        raise ValueError(
            f"the polygons of segmentation have an outline of {outline:.0f} pixels, "
            f"too long for an image of {width}x{height}"
        )
    polygons = [polygon for polygon in polygons if len(polygon) > 4]
    if not polygons:
        raise ValueError("segmentation has no polygon of three points or more")
    return polygons


def _from_run_lengths(rle: dict[str, Any], height: int, width: int) -> np.ndarray:
    """Returns the mask of COCO's RLE: runs down the columns, the first of zeros."""
    size = checks.items(rle, "size", 2)
    if size != [height, width] or any(type(side) is not int for side in size):
        raise ValueError(
            f"size of segmentation is {checks.show(size)}, not [{height}, {width}]"
        )
    counts = checks.field(rle, "counts")
    if isinstance(counts, str):
        counts = decompress_counts(counts)
    pixels = height * width
    if not isinstance(counts, list) or len(counts) > pixels + 1:
        raise ValueError(
            f"counts of segmentation must be a list of up to {pixels + 1} integers, or "
            f"text, not {checks.show(counts)}"
        )
    for count in counts:
        if type(count) is not int or not 0 <= count <= pixels:
            raise ValueError(
                f"counts of segmentation have {checks.show(count)}, not an integer "
                f"from 0 to {pixels}"
            )
    if sum(counts) != pixels:
        raise ValueError(
            f"counts of segmentation add up to {sum(counts)}, not to {pixels}, the "
            f"pixels of {width}x{height}"
        )
    values = np.arange(len(counts)) % 2 == 1
    return np.repeat(values, counts).reshape(width, height).T


def decompress_counts(text: str) -> list[int]:
    """Returns the run lengths of COCO's compressed RLE.

    Each is a signed number in groups of five bits, the lowest first. A character is 48
    plus the group, plus 32 where another group follows. From the fourth on, a number is
    the difference to the run length two before.
    """
    counts: list[int] = []
    value = shift = 0
    for character in text:
        group = ord(character) - 48
        if not 0 <= group < 64 or shift > 60:
            raise ValueError(
                f"counts of segmentation have {character!r}, where no such number goes "
                "on"
            )
        value |= (group & 31) << shift
        shift += 5
        if group & 32:
            continue
        if group & 16:
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("counts of segmentation end inside of a number")
    return counts
