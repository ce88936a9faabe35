"""COCO 2017 for semantic segmentation, as torchvision's reference prepares it."""

import collections
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from examples.shared import images
from examples.shared.coco_folder import CocoFolder, require
from examples.shared.data import IGNORE, Data, Example

# COCO's ids of Pascal VOC's categories, in the order of the classes; 0 is background.
VOC_CATEGORIES = (
    *(0, 5, 2, 16, 9, 44, 6, 3, 17, 62, 21),
    *(67, 18, 19, 4, 1, 64, 20, 63, 7, 72),
)
MINIMUM_AREA = 1000  # annotated pixels that a training image must exceed


class CocoMasks:
    """A split of COCO: images with a mask of classes, -1 where instances overlap."""

    def __init__(
        self,
        folder: pathlib.Path,
        name: str,
        categories: Sequence[int] = VOC_CATEGORIES,
        minimum_area: float = -1,
    ):
        """Reads the annotations.

        Args:
          folder: Has annotations/instances_<name>.json and the folder <name> of images.
          name: "train2017" or "val2017".
          categories: The ids to keep; an id's place is its class, the first is the
            background's.
          minimum_area: Images are kept that have more annotated pixels of these
            categories, crowds included, as in torchvision's reference.
        """
        self._coco = CocoFolder(folder, name)
        classes = {category: number for number, category in enumerate(categories)}
        areas = collections.Counter()
        self._instances = collections.defaultdict(list)
        for annotation in self._coco.annotations:
            if annotation.category in classes:
                areas[annotation.picture] += annotation.area
                number = classes[annotation.category]
                self._instances[annotation.picture].append((number, annotation))
        self._keys = [k for k in sorted(self._coco.pictures) if areas[k] > minimum_area]
        if not self._keys:
            raise ValueError(
                f"{self._coco.json} leaves no image with more than {minimum_area} "
                "annotated pixels of the categories asked for."
            )
        self._coco.check_files(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> Example:
        key = self._keys[index]
        image = self._coco.image(key)
        label = np.zeros(image.shape[:2], np.int32)
        covered = np.zeros(image.shape[:2], np.int32)
        for number, annotation in self._instances[key]:
            mask = self._coco.mask(annotation)
            np.maximum(label, number, out=label, where=mask)
            covered += mask
        return {"image": image, "label": np.where(covered > 1, IGNORE, label)}


def load(
    folder: str | os.PathLike | None,
    image_size: int = 480,
    categories: Sequence[int] = VOC_CATEGORIES,
) -> Data:
    """Loads COCO; training images are squares of the size, with 21 classes.

    The reference's sizes belong to 480 and grow with it. Training scales the shorter
    side to between a half and twice 520, flips, and cuts out a random square of 480.
    Evaluation scales the shorter side to 520, or the longer one to 800 if that is
    less, and pads to a square of 800, because the compiled program has one shape.
    Padding has the label -1.
    """
    folder = require(folder)
    base, evaluated = round(image_size * 13 / 12), round(image_size * 5 / 3)

    def augment(example: Example, rng: np.random.Generator) -> Example:
        image, label = example["image"], example["label"]
        short = rng.integers(base // 2, 2 * base + 1)
        image, label = _scale(image, label, short / min(label.shape))
        if rng.random() < 0.5:
            image, label = image[:, ::-1], label[:, ::-1]
        top, left = (
            rng.integers(max(side - image_size, 0) + 1) for side in label.shape
        )
        window = (slice(top, top + image_size), slice(left, left + image_size))
        return _finish(image[window], label[window], image_size)

    def prepare(example: Example) -> Example:
        image, label = example["image"], example["label"]
        factor = min(base / min(label.shape), evaluated / max(label.shape))
        return _finish(*_scale(image, label, factor), evaluated)

    return Data(
        train=CocoMasks(folder, "train2017", categories, MINIMUM_AREA),
        test=CocoMasks(folder, "val2017", categories),
        augment=augment,
        prepare=prepare,
        classes=len(categories),
        shape=(image_size, image_size, 3),
    )


def _scale(
    image: np.ndarray, label: np.ndarray, factor: float
) -> tuple[np.ndarray, np.ndarray]:
    height, width = (max(1, round(side * factor)) for side in label.shape)
    return (
        images.resize(image, height, width),
        images.resize(label, height, width, images.NEAREST),
    )


def _finish(image: np.ndarray, label: np.ndarray, size: int) -> Example:
    """Normalizes, and pads on the right and below to a square."""
    height, width = label.shape
    square = np.zeros((size, size, 3), np.float32)
    square[:height, :width] = images.normalize(
        image, images.IMAGENET_MEAN, images.IMAGENET_STD
    )
    mask = np.full((size, size), IGNORE, np.int32)
    mask[:height, :width] = label
    return {"image": square, "label": mask}
