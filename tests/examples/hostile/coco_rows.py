"""COCO's annotations and segmentations."""

import json
import pathlib
from typing import Any

from PIL import Image
from pycocotools import mask as pycocotools_mask

from examples.segmentation.coco import CocoMasks
from examples.shared.coco_format import rasterize
from tests.examples.hostile.row import Make, Row, after, no_files, write

JSON = "annotations/instances_val2017.json"
IMAGE = "val2017/7.png"
HEIGHT, WIDTH = 50, 60
SQUARE = [[5, 5, 25, 5, 25, 25, 5, 25]]
NAN, INFINITY = float("nan"), float("inf")


def picture(**changes: Any) -> dict[str, Any]:
    entry = {"id": 7, "file_name": "7.png", "height": HEIGHT, "width": WIDTH}
    return entry | changes


def annotation(**changes: Any) -> dict[str, Any]:
    entry = {
        "id": 31,
        "image_id": 7,
        "category_id": 1,
        "segmentation": SQUARE,
        "area": 400.0,
        "bbox": [5, 5, 20, 20],
        "iscrowd": 0,
    }
    return entry | changes


def coco(
    pictures: Any = None, annotations: Any = None, content: bytes | None = None
) -> Make:
    """Returns what writes a split with one gray image."""
    layout = {
        "images": [picture()] if pictures is None else pictures,
        "annotations": [annotation()] if annotations is None else annotations,
    }

    def make(folder: pathlib.Path) -> None:
        (folder / "val2017").mkdir()
        Image.new("RGB", (WIDTH, HEIGHT), "gray").save(folder / IMAGE)
        write(JSON, json.dumps(layout).encode() if content is None else content)(folder)

    return make


def read(folder: pathlib.Path) -> Any:
    return CocoMasks(folder, "val2017")[0]


def read_unchecked(folder: pathlib.Path) -> Any:
    """What the example did before: hands the polygons to pycocotools."""
    content = json.loads((folder / JSON).read_bytes())
    polygons = content["annotations"][0]["segmentation"]
    encoded = pycocotools_mask.frPyObjects(polygons, HEIGHT, WIDTH)
    return pycocotools_mask.decode(encoded)


# Fields: their values, and what the message says of them.

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


def field_rows() -> list[Row]:
    """An entry with a wrong value, or without a field."""
    rows = []
    for kind, whole, fields, needed, where in (
        ("pictures", picture(), PICTURE_FIELDS, ("id", "height"), "images[0]"),
        (
            "annotations",
            annotation(),
            ANNOTATION_FIELDS,
            ("image_id", "category_id", "segmentation", "area"),
            "annotation 31",
        ),
    ):
        cases = []
        for key, messages in fields.items():
            wrong = [(said, x) for said, own in messages.items() for x in own]
            cases += [
                (f"{key}-{number}", {**whole, key: value}, f"{key} {said}")
                for number, (said, value) in enumerate(wrong)
            ]
        for key in needed:
            short = {name: value for name, value in whole.items() if name != key}
            cases.append((f"{key}-lacking", short, f"lacks the key '{key}'"))
        for name, entry, said in cases:
            place = (where,) if "lacks" not in said else ()
            make = coco(**{kind: [entry]})
            rows.append(Row(f"coco-{kind}-{name}", make, read, (JSON, *place, said)))
    return rows


# Segmentations.

# Each turn crosses the image: 2 MB of such points would take pycocotools gigabytes.
ZIGZAG = [[0, 0, WIDTH, HEIGHT] * 20_000]
PIXELS = HEIGHT * WIDTH


def rle(counts: Any, size: Any = (HEIGHT, WIDTH)) -> dict[str, Any]:
    return {"size": list(size) if isinstance(size, tuple) else size, "counts": counts}


SEGMENTATIONS = {
    "polygon-1e9": ([[0, 0, 1e9, 0, 1e9, 1e9]], "the coordinate 1e+09, far outside"),
    "polygon-minus-1e9": ([[0, 0, -1e9, 0, 9, 9]], "-1e+09, far outside"),
    "polygon-1e308": ([[0, 0, 1e308, 0, 9, 1e308]], "1e+308, far outside"),
    "polygon-nan": ([[0, 0, NAN, 0, 9, 9]], "nan, which is no finite number"),
    "polygon-inf": ([[0, 0, INFINITY, 0, 9, 9]], "inf, which is no finite number"),
    "polygon-huge-integer": ([[0, 0, 10**400, 0, 9, 9]], "which is no finite number"),
    "polygon-of-bools": ([[True, 0, 9, 0, 9, 9]], "True, which is no finite number"),
    "polygon-of-text": ([["0", 0, 9, 0, 9, 9]], "'0', which is no finite number"),
    "polygon-of-lists": ([[[0, 0], 9, 0, 9, 9, 9]], "which is no finite number"),
    "polygon-odd": ([[0, 0, 9, 0, 9, 9, 9]], "polygon 0 of segmentation must be"),
    "polygon-one-point": ([[0, 0]], "must be a list of three points"),
    "polygon-two-points": ([[0, 0, 9, 9]], "has no polygon of three points"),
    "polygon-second": ([*SQUARE, [0, 0, 1e9, 0, 9, 9]], "polygon 1 of segmentation"),
    "polygon-zigzag": (ZIGZAG, "have an outline of"),
    "polygon-null": (None, "segmentation must be polygons or RLE"),
    "polygon-text": ("square", "segmentation must be polygons or RLE"),
    "polygon-of-null": ([None], "must be a list of three points"),
    "polygon-none": ([], "segmentation must be polygons or RLE"),
    "polygon-empty": ([[]], "must be a list of three points"),
    "rle-other-size": (rle([PIXELS], (WIDTH, HEIGHT)), "size of segmentation is"),
    "rle-huge-size": (rle([10**18], (10**9, 10**9)), "size of segmentation is"),
    "rle-float-size": (rle([PIXELS], (50.0, 60.0)), "size of segmentation is"),
    "rle-size-text": (rle([PIXELS], "50x60"), "size must be a list of 2"),
    "rle-no-counts": ({"size": [HEIGHT, WIDTH]}, "lacks the key 'counts'"),
    "rle-too-few": (rle([PIXELS - 1]), "add up to 2999, not to 3000"),
    "rle-too-many": (rle([PIXELS, 1]), "add up to 3001, not to 3000"),
    "rle-huge-count": (rle([2**63]), "have 9223372036854775808, not an integer"),
    "rle-wrapping": (rle([2**32 - 1, PIXELS + 1]), "have 4294967295, not an integer"),
    "rle-negative": (rle([-1, PIXELS + 1]), "have -1, not an integer"),
    "rle-float": (rle([NAN, PIXELS]), "have nan, not an integer"),
    "rle-bool": (rle([True, PIXELS - 1]), "have True, not an integer"),
    "rle-zeros": (rle([0] * 10_000 + [PIXELS]), "must be a list of up to 3001"),
    "rle-null": (rle(None), "must be a list of up to 3001"),
    "rle-text-sum": (rle("1"), "add up to 1, not to 3000"),
    "rle-text-open": (rle("P" * 3), "end inside of a number"),
    "rle-text-long": (rle("o" * 200), "where no such number goes on"),
    "rle-text-foreign": (rle("\u2603"), "where no such number goes on"),
    "rle-text-negative": (rle("O"), "have -1, not an integer"),
}


def segmentation_rows() -> list[Row]:
    return [
        Row(
            f"coco-{name}",
            coco(annotations=[annotation(segmentation=value)]),
            read,
            (JSON, "image 7", "annotation 31", said),
        )
        for name, (value, said) in SEGMENTATIONS.items()
    ]


# The file as a whole.

LAYOUTS = {
    "deep": (b'{"images":' + b"[" * 100_000, "nested too deeply"),
    "deep-field": (b'{"images": [{"id":' + b'{"a":' * 100_000, "nested too deeply"),
    "empty": (b"", "is not JSON, or truncated"),
    "zeros": (bytes(1000), "is not JSON, or truncated"),
    "not-utf8": (b'{"images": ["\xff"]}', "is not JSON, or truncated"),
    "digits": (b'{"images": ' + b"9" * 5000 + b"}", "is not JSON, or truncated"),
    "twice": (b'{"images": [], "images": []}', "'images' occurs twice"),
    "list": (b"[]", "must be an object"),
    "no-list": (b'{"images": {}, "annotations": []}', "images must be a list"),
    "null": (b'{"images": [null], "annotations": []}', "images[0]"),
    "no-annotations": (b'{"images": []}', "lacks the key 'annotations'"),
    "no-images": (b"{}", "lacks the key 'images'"),
    "cut": (b'{"images": [], "annotat', "is not JSON, or truncated"),
    "annotation-list": (
        b'{"images": [], "annotations": [[1]]}',
        "annotations[0] must be an object",
    ),
}


def layout_rows() -> list[Row]:
    rows = [
        Row(f"coco-json-{name}", coco(content=content), read, (JSON, said))
        for name, (content, said) in LAYOUTS.items()
    ]
    twice = coco(pictures=[picture(), picture()])
    said = (JSON, "images[1]", "id 7 is another image's too")
    rows.append(Row("coco-json-two-images", twice, read, said))
    outside = coco(pictures=[picture(file_name="../val2017/7.png")])
    rows.append(Row("coco-outside", outside, read, ("7.png", "is missing, which")))
    return rows


def bitmap(folder: pathlib.Path) -> Any:
    """Reads a compressed RLE that pycocotools made."""
    (entry,) = json.loads((folder / JSON).read_bytes())["annotations"]
    assert rasterize(entry["segmentation"], HEIGHT, WIDTH).sum() == 400
    return read(folder)


def controls() -> list[Row]:
    encoded = pycocotools_mask.frPyObjects(SQUARE, HEIGHT, WIDTH)[0]
    compressed = rle(encoded["counts"].decode())
    twice = [picture(), picture(id=8)]
    makes = {
        "polygon": coco(),
        "polygon-outside": coco(
            annotations=[annotation(segmentation=[[-9, 0, 70, 0, 70, 55.5]])]
        ),
        "rle": coco(annotations=[annotation(segmentation=rle([PIXELS]))]),
        "two-images": coco(pictures=twice),
    }
    rows = [Row(f"control-coco-{n}", make, read, ()) for n, make in makes.items()]
    make = coco(annotations=[annotation(segmentation=compressed)])
    rows.append(Row("control-coco-rle-text", make, bitmap, ()))
    bare = annotation()
    del bare["bbox"], bare["iscrowd"], bare["id"]
    make = after(coco(annotations=[bare]))
    rows.append(Row("control-coco-bare", make, read, ()))
    return rows


ROWS = [
    *field_rows(),
    *segmentation_rows(),
    *layout_rows(),
    *no_files("coco-json", coco(), JSON, read),
    *controls(),
]
