"""The data sets for segmentation, by name."""

import os

import numpy as np

from examples.segmentation import coco
from examples.shared import images, scenes
from examples.shared.data import Data, Example

TRAIN_SCENES = 4000
TEST_SCENES = 400


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
      image_size: The side of the training images: 64 for scenes, 480 for COCO.
      train_examples: How many, always the same ones; 4000 scenes or all of COCO by
        default.
      test_examples: The same for the test split; 400 scenes by default.
    """
    if name == "scenes":
        return load_scenes(
            image_size or 64,
            TRAIN_SCENES if train_examples is None else train_examples,
            TEST_SCENES if test_examples is None else test_examples,
        )
    if name == "coco":
        data = coco.load(folder, image_size or 480)
        return data.keep(train_examples, test_examples)
    raise ValueError(f"The data sets are scenes and coco, got {name!r}.")


def load_scenes(
    image_size: int = 64,
    train_examples: int = TRAIN_SCENES,
    test_examples: int = TEST_SCENES,
    seed: int = 0,
) -> Data:
    """Makes scenes of digits; training permutes the colour channels.

    A mirrored digit is not a digit, so nothing is flipped.
    """

    def prepare(example: Example) -> Example:
        image = images.normalize(example["image"], scenes.MEAN, scenes.STD)
        return {"image": image, "label": example["label"]}

    def augment(example: Example, rng: np.random.Generator) -> Example:
        image = example["image"][..., rng.permutation(3)]
        return prepare({"image": image, "label": example["label"]})

    return Data(
        train=scenes.Scenes("train", train_examples, size=image_size, seed=seed),
        test=scenes.Scenes("test", test_examples, size=image_size, seed=seed),
        augment=augment,
        prepare=prepare,
        classes=scenes.CLASSES,
        shape=(image_size, image_size, 3),
    )
