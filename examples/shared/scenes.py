"""Scenes for segmentation and detection, composed of scikit-learn's digits.

A scene has two to six real digits of random size, place and bright colour, which may
overlap, on a darker textured background with bright lines that are not digits. Scene i
of a split depends on the seed, the split, its size and i alone.
"""

import json
import pathlib
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from examples.shared import digits, images
from examples.shared.data import Example

CLASSES = 11  # the background and ten digits
SIZES = range(32, 97)
MEAN = np.full(3, 90, np.float32)  # of the bytes of each channel
STD = np.full(3, 56, np.float32)
SPLITS = ("train", "test")


class Scene(NamedTuple):
    """An image and the digits that are visible in it."""

    image: np.ndarray  # bytes [H, W, 3]
    masks: np.ndarray  # bool [n, H, W]: the ink of each that no other one covers
    digits: np.ndarray  # int32 [n]


class Scenes:
    """A split of scenes, each made when it is first requested, and kept.

    Those of "train" use the digits of the training split only, those of "test" the
    others.
    """

    def __init__(self, split: str, count: int, *, size: int = 64, seed: int = 0):
        if size not in SIZES:
            raise ValueError(f"Scenes have sizes from 32 to 96, not {size}.")
        data = digits.load()
        train = split == "train"
        ink = data.train_images if train else data.test_images
        low, high = data.train_images.min(), data.train_images.max()
        self._ink = np.round(255 * (ink[..., 0] - low) / (high - low)).astype(np.uint8)
        self._labels = data.train_labels if train else data.test_labels
        self._key = (seed, SPLITS.index(split))
        self._count = count
        self._size = size
        self._made: dict[int, Example] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Example:
        if index not in self._made:
            scene = self.scene(index)
            classes = (scene.digits + 1).astype(np.uint8)[:, None, None]
            label = np.max(scene.masks * classes, axis=0)
            self._made[index] = {"image": scene.image, "label": label}
        return self._made[index]

    def scene(self, index: int) -> Scene:
        if not 0 <= index < self._count:
            raise IndexError(f"No scene {index} among {self._count}.")
        rng = np.random.default_rng((*self._key, index))
        return _compose(self._ink, self._labels, self._size, rng)


def _compose(
    ink: np.ndarray, labels: np.ndarray, size: int, rng: np.random.Generator
) -> Scene:
    image = _ground(size, rng)
    chosen = rng.integers(len(labels), size=rng.integers(2, 7))
    masks = np.zeros((len(chosen), size, size), bool)
    for number, index in enumerate(chosen):
        side = int(rng.integers(size // 4, size // 2 + 1))
        window = _free_window(masks.any(axis=0), side, rng)
        opacity = images.resize(ink[index], side, side) / np.float32(255)
        opacity = np.clip(4 * opacity - 1.5, 0, 1)  # sharper edges
        part = image[window]
        part += opacity[..., None] * (_bright_color(rng) - part)
        masks[:, *window] &= opacity < 0.5
        masks[number, *window] = opacity >= 0.5
    image += rng.integers(-12, 13, size=image.shape)
    seen = masks.any(axis=(1, 2))
    return Scene(
        np.clip(image, 0, 255).astype(np.uint8), masks[seen], labels[chosen][seen]
    )


def _ground(size: int, rng: np.random.Generator) -> np.ndarray:
    """Draws patches of colour, bright lines and waves: float32 [size, size, 3]."""
    cells = rng.integers(2, 7)
    patches = rng.integers(20, 120, size=(cells, cells, 3), dtype=np.uint8)
    canvas = Image.fromarray(images.resize(patches, size, size))
    draw = ImageDraw.Draw(canvas)
    for _ in range(rng.integers(0, 4)):
        points = rng.integers(0, size, size=(3, 2))
        draw.line(points.ravel().tolist(), tuple(_bright_color(rng).tolist()))
    y, x = np.mgrid[:size, :size] / size
    down, right = rng.uniform(-12, 12, size=2)
    wave = np.sin(2 * np.pi * (down * y + right * x))
    waves = wave[..., None] * rng.uniform(0, 20, size=3)
    return np.asarray(canvas, np.float32) + waves.astype(np.float32)


def _bright_color(rng: np.random.Generator) -> np.ndarray:
    color = rng.integers(40, 256, size=3)
    return 255 * color // color.max()


def _free_window(
    taken: np.ndarray, side: int, rng: np.random.Generator
) -> tuple[slice, slice]:
    """Draws three places and returns the one where the fewest pixels are taken."""
    corners = rng.integers(0, len(taken) - side + 1, size=(3, 2))
    windows = [
        (slice(top, top + side), slice(left, left + side)) for top, left in corners
    ]
    return min(windows, key=lambda window: taken[window].sum())


def write_coco(scenes: Scenes, folder: pathlib.Path, name: str) -> None:
    """Writes scenes in COCO's layout.

    They are <name>/*.jpg and annotations/instances_<name>.json in the folder. The
    category of a digit is the digit + 1. The masks are exact, as uncompressed RLE.
    """
    (folder / name).mkdir(parents=True)
    (folder / "annotations").mkdir(exist_ok=True)
    pictures, annotations = [], []
    for number in range(len(scenes)):
        scene = scenes.scene(number)
        picture = _describe(scene, number + 1)
        Image.fromarray(scene.image).save(
            folder / name / picture["file_name"], quality=95
        )
        pictures.append(picture)
        for mask, digit in zip(scene.masks, scene.digits, strict=True):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": picture["id"],
                    "category_id": int(digit) + 1,
                    "iscrowd": 0,
                    "area": int(mask.sum()),
                    "bbox": bounding_box(mask),
                    "segmentation": {
                        "size": list(mask.shape),
                        "counts": run_lengths(mask),
                    },
                }
            )
    categories = [
        {"id": digit + 1, "name": str(digit), "supercategory": "digit"}
        for digit in range(10)
    ]
    instances = {
        "info": {"description": "Scenes of scikit-learn's digits"},
        "licenses": [],
        "images": pictures,
        "annotations": annotations,
        "categories": categories,
    }
    path = folder / "annotations" / f"instances_{name}.json"
    path.write_text(json.dumps(instances))


def _describe(scene: Scene, number: int) -> dict[str, Any]:
    height, width = scene.image.shape[:2]
    return {
        "id": number,
        "file_name": f"{number:012}.jpg",
        "height": height,
        "width": width,
    }


def bounding_box(mask: np.ndarray) -> list[int]:
    """Returns left, top, width and height of the smallest box around a mask."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    left, top = int(columns[0]), int(rows[0])
    return [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1]


def run_lengths(mask: np.ndarray) -> list[int]:
    """Returns COCO's RLE: lengths of runs down the columns, the first of zeros."""
    pixels = mask.T.ravel()
    changes = np.flatnonzero(np.diff(pixels, prepend=False))
    return np.diff(np.concatenate([[0], changes, [pixels.size]])).tolist()
