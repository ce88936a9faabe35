"""COCO 2017 for detection, as torchvision's reference prepares it."""

import collections
import pathlib
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from examples.detection import masks
from examples.shared import images
from examples.shared.coco_folder import CocoFolder
from examples.shared.coco_format import Annotation
from examples.shared.data import IGNORE, Example

CLASSES = 91  # the background and COCO's ids 1 to 90, of which 80 are used


class CocoInstances:
    """A split of COCO: images, and boxes, classes and masks of what is in them.

    Attributes:
      most: The largest number of instances in an image.
      counts: How many annotations are "crowds", "clipped" or "degenerate".
    """

    def __init__(
        self,
        folder: pathlib.Path,
        name: str,
        *,
        classes: int = CLASSES,
        cells: int = 56,
        train: bool,
        preload: bool = False,
    ):
        """Reads the annotations.

        Crowds are not trained on, but are part of the truth that detections are scored
        with. Boxes are clipped to their image; those without width or height are left
        out, in both. `counts` has how many.

        Args:
          folder: Has annotations/instances_<name>.json and the folder <name> of images.
          name: "train2017" or "val2017".
          classes: A category must be from 1 to this, exclusive; it is the class.
          cells: Of a mask in its box, each way.
          train: Whether images without boxes larger than a pixel are left out, as in
            torchvision's reference. The examples then have boxes.
          preload: Whether to read all images now, and keep them.
        """
        self._coco = CocoFolder(folder, name)
        self._classes, self._cells, self._train = classes, cells, train
        self._instances: dict[int, list[tuple[Annotation, np.ndarray]]] = (
            collections.defaultdict(list)
        )
        self._crowds: dict[int, list[Annotation]] = collections.defaultdict(list)
        self.counts = collections.Counter()
        for annotation in self._coco.annotations:
            self._add(annotation)
        self._keys = [
            key
            for key in sorted(self._coco.pictures)
            if not train or self._is_worth_it(key)
        ]
        if not self._keys:
            raise ValueError(f"{self._coco.json} leaves no image with boxes.")
        self._coco.check_files(self._keys)
        self.most = max(len(self._instances[key]) for key in self._keys)
        self._kept: list[Example] = []
        if preload:
            self._kept = [self._read(index) for index in range(len(self._keys))]

    def _add(self, annotation: Annotation) -> None:
        if not 1 <= annotation.category < self._classes:
            self._refuse(
                annotation,
                f"category_id is {annotation.category}, but the configuration has "
                f"categories from 1 to {self._classes - 1}",
            )
        if annotation.box is None:
            self._refuse(annotation, "it lacks the key 'bbox'")
        if annotation.crowd:
            self.counts["crowds"] += 1
            self._crowds[annotation.picture].append(annotation)
            return
        _, height, width = self._coco.pictures[annotation.picture]
        left, top, wide, high = annotation.box
        corners = np.array([left, top, left + wide, top + high])
        clipped = np.clip(corners, 0, [width, height, width, height])
        if (clipped[2:] <= clipped[:2]).any():
            self.counts["degenerate"] += 1
            return
        self.counts["clipped"] += int(np.abs(clipped - corners).max() > 1e-3)
        own = clipped.astype(np.float32)
        self._instances[annotation.picture].append((annotation, own))

    def _refuse(self, annotation: Annotation, why: str) -> NoReturn:
        raise ValueError(f"{self._coco.json}: {annotation.name}: {why}.")

    def _is_worth_it(self, key: int) -> bool:
        sides = [box[2:] - box[:2] for _, box in self._instances[key]]
        return any((side > 1).all() for side in sides)

    def describe(self) -> str:
        """Says what was read, and what was changed or left out."""
        counts = self.counts
        return (
            f"{self._coco.json}: {len(self._keys)} images, at most {self.most} "
            f"instances; {counts['crowds']} crowds not trained on, {counts['clipped']} "
            f"boxes clipped to their image, {counts['degenerate']} without width or "
            "height left out."
        )

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> Example:
        return self._kept[index] if self._kept else self._read(index)

    def _read(self, index: int) -> Example:
        key = self._keys[index]
        number = np.int32(index + 1)  # 0 is a padded example's
        example = {"image": self._coco.image(key), "number": number}
        if not self._train:
            return example
        found = self._instances[key]
        crops = [
            masks.crop(self._coco.mask(annotation), box, self._cells)
            for annotation, box in found
        ]
        return {
            **example,
            "boxes": np.stack([box for _, box in found]),
            "label": np.array([a.category for a, _ in found], np.int32),
            "masks": np.stack(crops),
        }

    # What detections are scored with.

    def key(self, number: int) -> int:
        """Returns the id of the image that has this number."""
        return self._keys[number - 1]

    def size(self, number: int) -> tuple[int, int]:
        """Returns height and width of the image that has this number."""
        _, height, width = self._coco.pictures[self.key(number)]
        return height, width

    def truth(self, indices: Iterable[int]) -> dict[str, Any]:
        """Returns images and annotations of these examples, for pycocotools.

        Segmentations are checked, and become compressed RLE.
        """
        pictures, annotations = [], []
        for index in indices:
            key = self._keys[index]
            _, height, width = self._coco.pictures[key]
            pictures.append({"id": key, "height": height, "width": width})
            boxes = [(a, _to_width_and_height(box)) for a, box in self._instances[key]]
            boxes += [(a, list(a.box or ())) for a in self._crowds[key]]
            for annotation, box in boxes:
                annotations.append(
                    {
                        "id": len(annotations) + 1,  # pycocotools takes 0 for none
                        "image_id": key,
                        "category_id": annotation.category,
                        "bbox": box,
                        "area": annotation.area,
                        "iscrowd": int(annotation.crowd),
                        "segmentation": masks.encode(self._coco.mask(annotation)),
                    }
                )
        used = sorted({entry["category_id"] for entry in annotations})
        categories = [{"id": category, "name": str(category)} for category in used]
        return {
            "images": pictures,
            "annotations": annotations,
            "categories": categories,
        }


def _to_width_and_height(box: np.ndarray) -> list[float]:
    left, top, right, bottom = box.tolist()
    return [left, top, right - left, bottom - top]


def flip(example: Example) -> Example:
    """Swaps left and right of the image, its boxes and its masks."""
    width = example["image"].shape[1]
    left, top, right, bottom = example["boxes"].T
    return {
        **example,
        "image": example["image"][:, ::-1],
        "boxes": np.stack([width - right, top, width - left, bottom], axis=1),
        "masks": example["masks"][:, :, ::-1],
    }


def fit(
    example: Example, short: int, size: int, mean: np.ndarray, std: np.ndarray
) -> Example:
    """Scales, normalizes and pads an image to a square; boxes are scaled with it.

    Args:
      example: Has the image, and boxes if it is trained on.
      short: Of the shorter side, if the longer one then fits.
      size: Of the square.
      mean: Of the images, in bytes.
      std: Of the images, in bytes.
    """
    image = example["image"]
    height, width = image.shape[:2]
    factor = min(short / min(height, width), size / max(height, width))
    rows = min(size, max(1, round(height * factor)))
    columns = min(size, max(1, round(width * factor)))
    if (rows, columns) != (height, width):
        image = images.resize(image, rows, columns)
    square = np.zeros((size, size, 3), np.float32)
    square[:rows, :columns] = images.normalize(image, mean, std)
    result = {
        **example,
        "image": square,
        "size": np.array([rows, columns], np.int32),
    }
    if "boxes" in example:
        scale = [columns / width, rows / height]
        result["boxes"] = example["boxes"] * np.array(2 * scale, np.float32)
    return result


def fill_up(example: Example, most: int) -> Example:
    """Adds idle boxes, with the label -1, until there are `most`."""
    missing = most - len(example["label"])
    filling = {"boxes": 0, "label": IGNORE, "masks": 0}

    def pad(array: np.ndarray, value: int) -> np.ndarray:
        widths = [(0, missing)] + [(0, 0)] * (array.ndim - 1)
        return np.pad(array, widths, constant_values=value)

    return {**example, **{k: pad(example[k], v) for k, v in filling.items()}}
