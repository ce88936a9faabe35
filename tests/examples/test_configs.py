"""Configurations of full size take real steps, on few and small images."""

import dataclasses
import os

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from examples.classification import train as classification
from examples.classification.configs import CONFIGS as CLASSIFICATION
from examples.detection import train as detection
from examples.detection.configs import CONFIGS as DETECTION
from examples.segmentation import train as segmentation
from examples.segmentation.configs import CONFIGS as SEGMENTATION
from examples.shared import loop, optimizers, scenes

# Of pycocotools, with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    """Two classes of ImageNet, four images of each."""
    folder = tmp_path_factory.mktemp("imagenet")
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("n01440764", "n01443537"):
            (folder / split / name).mkdir(parents=True)
            for i in range(4):
                pixels = rng.integers(0, 256, (40, 48, 3), np.uint8)
                path = folder / split / name / f"{name}_{i}.JPEG"
                Image.fromarray(pixels).save(path)
    return folder


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    """Eight scenes in COCO's layout."""
    folder = tmp_path_factory.mktemp("coco")
    for split in ("train", "val"):
        made = scenes.Scenes("train" if split == "train" else "test", 8, size=96)
        scenes.write_coco(made, folder, f"{split}2017")
    return folder


LONG = pytest.mark.skipif(
    "DETECTION_CHECK" not in os.environ, reason="takes minutes: make detection-check"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "config", "folder", "batch", "size", "frozen"),
    [
        (classification, CLASSIFICATION["resnet50-1024"], "imagenet", 4, 32, ()),
        (segmentation, SEGMENTATION["deeplabv3-64"], "coco", 4, 32, ()),
        pytest.param(
            *(detection, DETECTION["maskrcnn-32"], "coco", 2, 64),
            (("body", "conv1"), ("body", "layer1")),
            marks=LONG,
        ),
    ],
    ids=["resnet50", "deeplabv3", "mask_rcnn"],
)
def test_a_full_size_model_takes_steps(
    module, config, folder, batch, size, frozen, request
):
    config = dataclasses.replace(config, batch_size=batch, image_size=size)
    folder = request.getfixturevalue(folder)
    task = module.make_task(config, seed=0, folder=folder)
    built = optimizers.build(
        "jorge",
        config,
        steps=config.epochs * task.steps_per_epoch,
        steps_per_epoch=task.steps_per_epoch,
    )
    step, state = loop.make_step_and_state(task, built.transformation, seed=0)
    before = nnx.to_flat_state(jax.tree.map(np.asarray, state.params))
    batches = task.train(0)
    for _ in range(2):  # the first one of a warm-up has a learning rate of 0
        state, loss = step(state, next(batches))
    assert np.isfinite(float(loss))
    after = nnx.to_flat_state(state.params)
    for (path, old), (_, new) in zip(before, after, strict=True):
        assert np.isfinite(new[...]).all()
        assert np.array_equal(old[...], new[...]) == (path[1:3] in frozen), path
