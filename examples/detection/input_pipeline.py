"""The data sets for detection, by name."""

import functools
import os
import pathlib
import tempfile

import numpy as np
from tqdm import tqdm

from examples.detection.coco import CLASSES, CocoInstances, fill_up, fit, flip
from examples.shared import images, scenes
from examples.shared.coco_folder import require
from examples.shared.data import Data, Example

TRAIN_SCENES = 320
TEST_SCENES = 96


def load(
    name: str,
    folder: str | os.PathLike | None = None,
    *,
    image_size: int | None = None,
    train_examples: int | None = None,
    test_examples: int | None = None,
) -> Data:
    """Loads "scenes" or "coco".

    Args:
      name: Which data set.
      folder: Where COCO is. The scenes need none.
      image_size: The side of the padded images: 64 for scenes, 1344 for COCO.
      train_examples: How many, always the same ones; 320 scenes or all of COCO by
        default.
      test_examples: The same for the test split; 96 scenes by default.
    """
    if name == "scenes":
        return load_scenes(
            image_size or 64,
            TRAIN_SCENES if train_examples is None else train_examples,
            TEST_SCENES if test_examples is None else test_examples,
        )
    if name == "coco":
        data = load_coco(folder, image_size or 1344)
        return data.keep(train_examples, test_examples)
    raise ValueError(f"The data sets are scenes and coco, got {name!r}.")


@functools.lru_cache(maxsize=2)
def load_scenes(
    image_size: int = 64,
    train_examples: int = TRAIN_SCENES,
    test_examples: int = TEST_SCENES,
) -> Data:
    """Makes scenes of digits, writes them in COCO's format and reads them from there.

    Training permutes the colour channels. A mirrored digit is not a digit, so nothing
    is flipped. The files are removed when they have been read.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        splits = {}
        for split, name, count in (
            ("train", "train2017", train_examples),
            ("test", "val2017", test_examples),
        ):
            made = scenes.Scenes(split, count, size=image_size)
            scenes.write_coco(made, folder, name)
            splits[split] = CocoInstances(
                folder,
                name,
                classes=scenes.CLASSES,
                cells=28,
                train=split == "train",
                preload=True,
            )

    def permute(example: Example, rng: np.random.Generator) -> Example:
        return {**example, "image": example["image"][..., rng.permutation(3)]}

    return _make(
        splits, scenes.CLASSES, image_size, image_size, scenes.MEAN, scenes.STD, permute
    )


def load_coco(folder: str | os.PathLike | None, image_size: int = 1344) -> Data:
    """Loads COCO; images are padded to squares of the size, with 91 classes.

    The reference's sizes belong to 1344, a multiple of the pyramid's strides, and grow
    with it: the shorter side is scaled to 800, or the longer one to 1344 if that is
    less (1333 in the reference). Training flips half of the images.
    """
    folder = require(folder)
    splits = {
        split: CocoInstances(folder, name, train=split == "train")
        for split, name in (("train", "train2017"), ("test", "val2017"))
    }
    for split in splits.values():
        tqdm.write(split.describe())

    def flip_half(example: Example, rng: np.random.Generator) -> Example:
        return flip(example) if rng.random() < 0.5 else example

    short = round(image_size * 800 / 1344)
    mean, std = images.IMAGENET_MEAN, images.IMAGENET_STD
    return _make(splits, CLASSES, image_size, short, mean, std, flip_half)


def _make(
    splits: dict[str, CocoInstances],
    classes: int,
    size: int,
    short: int,
    mean: np.ndarray,
    std: np.ndarray,
    change,
) -> Data:
    most = splits["train"].most

    def prepare(example: Example) -> Example:
        return fit(example, short, size, mean, std)

    def augment(example: Example, rng: np.random.Generator) -> Example:
        return fill_up(prepare(change(example, rng)), most)

    return Data(
        train=splits["train"],
        test=splits["test"],
        augment=augment,
        prepare=prepare,
        classes=classes,
        shape=(size, size, 3),
    )
