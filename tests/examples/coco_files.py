"""Small files in COCO's layout: gray images, 60 wide and 50 high."""

import json

from PIL import Image

HEIGHT, WIDTH = 50, 60


def square(left, top, side):
    """A polygon around side x side pixels."""
    return outline(left, top, side, side)


def outline(left, top, width, height):
    """A polygon around a box."""
    right, bottom = left + width, top + height
    return [[left, top, right, top, right, bottom, left, bottom]]


def annotation(box, category=1, *, image=7, crowd=0, segmentation=None):
    """The entry of an instance, by default one that fills its box."""
    return {
        "id": 31,
        "image_id": image,
        "category_id": category,
        "segmentation": outline(*box) if segmentation is None else segmentation,
        "area": box[2] * box[3],
        "bbox": list(box),
        "iscrowd": crowd,
    }


def picture(key=7):
    """The entry of an image."""
    name = f"{key:012}.jpg"
    return {"id": key, "file_name": name, "height": HEIGHT, "width": WIDTH}


def write_split(folder, annotations, pictures=None):
    """Writes annotations and images of the split val2017."""
    pictures = [picture()] if pictures is None else pictures
    for name in ("annotations", "val2017"):
        (folder / name).mkdir(exist_ok=True)
    for entry in pictures:
        path = folder / "val2017" / entry["file_name"]
        Image.new("RGB", (WIDTH, HEIGHT), "gray").save(path)
    path = folder / "annotations" / "instances_val2017.json"
    path.write_text(json.dumps({"images": pictures, "annotations": annotations}))
