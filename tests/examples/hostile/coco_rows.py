"""COCO's annotations and segmentations."""

import io
import json
import pathlib
from typing import Any

from PIL import Image
from pycocotools import mask as pycocotools_mask

from examples.segmentation.coco import CocoMasks
from examples.shared.coco_format import rasterize
from tests.examples.hostile.row import Files, Row, no_files

JSON = "annotations/instances_val2017.json"
IMAGE = "val2017/7.png"
HEIGHT, WIDTH = 50, 60
SQUARE = [[5, 5, 25, 5, 25, 25, 5, 25]]
NAN, INFINITY = float("nan"), float("inf")
PICTURE = {"id": 7, "file_name": "7.png", "height": HEIGHT, "width": WIDTH}
ANNOTATION = {
    "id": 31,
    "image_id": 7,
    "category_id": 1,
    "segmentation": SQUARE,
    "area": 400.0,
    "bbox": [5, 5, 20, 20],
    "iscrowd": 0,
}
PIXELS = io.BytesIO()
Image.new("RGB", (WIDTH, HEIGHT), "gray").save(PIXELS, "PNG")


def coco(pictures: Any = (PICTURE,), annotations: Any = (ANNOTATION,)) -> Files:
    """A split with one gray image."""
    content = json.dumps({"images": pictures, "annotations": annotations}).encode()
    return {IMAGE: PIXELS.getvalue(), JSON: content}


def segmented(segmentation: Any) -> Files:
    return coco(annotations=[{**ANNOTATION, "segmentation": segmentation}])


def read(folder: pathlib.Path) -> Any:
    return CocoMasks(folder, "val2017")[0]


def read_unchecked(folder: pathlib.Path) -> Any:
    """What the example did before: hands the polygons to pycocotools."""
    content = json.loads((folder / JSON).read_bytes())
    polygons = content["annotations"][0]["segmentation"]
    encoded = pycocotools_mask.frPyObjects(polygons, HEIGHT, WIDTH)
    return pycocotools_mask.decode(encoded)


# Fields: their wrong values, and what the message says of them.

WHOLE = "must be an integer"
FINITE = "must be a finite number"
TEXT = "must be text"
NUMBERS = "must have finite numbers"
SIZE = "must be at least 1 and at most"
PICTURE_FIELDS = {
    "id": {WHOLE: ["7", True, None, [7], 7.0]},
    "file_name": {TEXT: [None, 7, ["7.png"], ""]},
    "height": {"must be at least 1": [0, -50], WHOLE: ["50", True, NAN], SIZE: [2**62]},
    "width": {SIZE: [2**26], WHOLE: [None]},
}
ANNOTATION_FIELDS = {
    "image_id": {WHOLE: ["7", [7], True, None], "is 8, which is not in images": [8]},
    "category_id": {WHOLE: ["1", None, True, [1], {"1": 1}, 1.0, NAN]},
    "area": {
        FINITE: ["400", None, True, [400], NAN, INFINITY, 10**400],
        "must be at least 0": [-1],
    },
    "bbox": {
        "must be a list of 4": ["5 5 20 20", [5, 5, 20], None],
        NUMBERS: [[5, 5, NAN, 20], [5, 5, "20", 20]],
        f"{NUMBERS}, not [5, 5, -20, 20], and no": [[5, 5, -20, 20]],
    },
    "iscrowd": {"must be at least 0 and at most 1": [2], WHOLE: ["0"]},
}


NEEDED = {
    "images": ("id", "height"),
    "annotations": ("image_id", "category_id", "segmentation", "area"),
}


def field_rows(
    kind: str, whole: dict[str, Any], fields: dict[str, Any], where: str
) -> list[Row]:
    """An entry with a wrong value, or without a field."""
    cases = [
        (f"{key}: {value!r:.20}", {**whole, key: value}, (where, f"{key} {said}"))
        for key, messages in fields.items()
        for said, values in messages.items()
        for value in values
    ]
    for key in NEEDED[kind]:
        short = {name: value for name, value in whole.items() if name != key}
        cases.append((f"{key}-lacking", short, (f"lacks the key '{key}'",)))
    return [
        Row(
            f"coco-{kind}-{name}",
            coco([entry]) if kind == "images" else coco(annotations=[entry]),
            read,
            (JSON, *said),
        )
        for name, entry, said in cases
    ]


# Segmentations.

# Each turn crosses the image: 2 MB of such points would take pycocotools gigabytes.
ZIGZAG = [[0, 0, WIDTH, HEIGHT] * 20_000]
COUNT = HEIGHT * WIDTH


def rle(counts: Any, size: Any = (HEIGHT, WIDTH)) -> dict[str, Any]:
    return {"size": size, "counts": counts}


SEGMENTATIONS = {
    "polygon-1e9": ([[0, 0, 1e9, 0, 1e9, 1e9]], "the coordinate 1e+09, far outside"),
    "polygon-nan": ([[0, 0, NAN, 0, 9, 9]], "nan, which is no finite number"),
    "polygon-huge-integer": ([[0, 0, 10**400, 0, 9, 9]], "which is no finite number"),
    "polygon-of-bools": ([[True, 0, 9, 0, 9, 9]], "True, which is no finite number"),
    "polygon-of-text": ([["0", 0, 9, 0, 9, 9]], "'0', which is no finite number"),
    "polygon-odd": ([[0, 0, 9, 0, 9, 9, 9]], "polygon 0 of segmentation must be"),
    "polygon-one-point": ([[0, 0]], "must be a list of three points"),
    "polygon-two-points": ([[0, 0, 9, 9]], "has no polygon of three points"),
    "polygon-second": ([*SQUARE, [0, 0, 1e9, 0, 9, 9]], "polygon 1 of segmentation"),
    "polygon-zigzag": (ZIGZAG, "have an outline of"),
    "polygon-null": (None, "segmentation must be polygons or RLE"),
    "rle-other-size": (rle([COUNT], (WIDTH, HEIGHT)), "size of segmentation is"),
    "rle-float-size": (rle([COUNT], (50.0, 60.0)), "size of segmentation is"),
    "rle-size-text": (rle([COUNT], "50x60"), "size must be a list of 2"),
    "rle-no-counts": ({"size": [HEIGHT, WIDTH]}, "lacks the key 'counts'"),
    "rle-too-few": (rle([COUNT - 1]), "add up to 2999, not to 3000"),
    "rle-huge-count": (rle([2**63]), "have 9223372036854775808, not an integer"),
    "rle-negative": (rle([-1, COUNT + 1]), "have -1, not an integer"),
    "rle-bool": (rle([True, COUNT - 1]), "have True, not an integer"),
    "rle-zeros": (rle([0] * 10_000 + [COUNT]), "must be a list of up to 3001"),
    "rle-text-sum": (rle("1"), "add up to 1, not to 3000"),
    "rle-text-open": (rle("P" * 3), "end inside of a number"),
    "rle-text-long": (rle("o" * 200), "where no such number goes on"),
    "rle-text-foreign": (rle("\u2603"), "where no such number goes on"),
}


# The file as a whole.

LAYOUTS = {
    "deep": (b'{"images":' + b"[" * 100_000, "nested too deeply"),
    "empty": (b"", "is not JSON, or truncated"),
    "not-utf8": (b'{"images": ["\xff"]}', "is not JSON, or truncated"),
    "twice": (b'{"images": [], "images": []}', "'images' occurs twice"),
    "list": (b"[]", "must be an object"),
    "no-list": (b'{"images": {}, "annotations": []}', "images must be a list"),
    "no-annotations": (b'{"images": []}', "lacks the key 'annotations'"),
    "cut": (b'{"images": [], "annotat', "is not JSON, or truncated"),
    "annotation-list": (
        b'{"images": [], "annotations": [[1]]}',
        "annotations[0] must be an object",
    ),
}


ENCODED = pycocotools_mask.frPyObjects(SQUARE, HEIGHT, WIDTH)[0]


def bitmap(folder: pathlib.Path) -> Any:
    """Reads a compressed RLE that pycocotools made."""
    (entry,) = json.loads((folder / JSON).read_bytes())["annotations"]
    assert rasterize(entry["segmentation"], HEIGHT, WIDTH).sum() == 400
    return read(folder)


BARE = {k: x for k, x in ANNOTATION.items() if k not in ("id", "bbox", "iscrowd")}
TWO = [PICTURE, PICTURE | {"id": 8}]
OUTSIDE = [PICTURE | {"file_name": "../val2017/7.png"}]
ROWS = [
    *field_rows("images", PICTURE, PICTURE_FIELDS, "images[0]"),
    *field_rows("annotations", ANNOTATION, ANNOTATION_FIELDS, "annotation 31"),
    *(
        Row(f"coco-{n}", segmented(x), read, (JSON, "image 7", "annotation 31", said))
        for n, (x, said) in SEGMENTATIONS.items()
    ),
    *(
        Row(f"coco-json-{n}", coco() | {JSON: content}, read, (JSON, said))
        for n, (content, said) in LAYOUTS.items()
    ),
    Row("coco-json-same-image", coco([PICTURE] * 2), read, (JSON, "images[1]", "id 7")),
    Row("coco-outside", coco(OUTSIDE), read, ("7.png", "is missing, which")),
    *no_files("coco-json", coco(), JSON, read),
    Row("control-coco-polygon", coco(), read),
    Row("control-coco-polygon-outside", segmented([[-9, 0, 70, 0, 70, 55.5]]), read),
    Row("control-coco-rle", segmented(rle([COUNT])), read),
    Row("control-coco-rle-text", segmented(rle(ENCODED["counts"].decode())), bitmap),
    Row("control-coco-two-images", coco(TWO), read),
    Row("control-coco-bare", coco(annotations=[BARE]), read),
]
