"""Each example through the loop, at a small size."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from examples.classification import train as classification
from examples.classification.configs import CONFIGS as CLASSIFICATION
from examples.detection import train as detection
from examples.detection.configs import CONFIGS as DETECTION
from examples.detection.models import MODELS
from examples.segmentation import train as segmentation
from examples.segmentation.configs import CONFIGS as SEGMENTATION
from examples.shared import devices, loop, optimizers
from examples.shared.config import Run

# Of pycocotools, with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")
SMALL = {"batch_size": 2, "train_examples": 4, "test_examples": 3, "eval_every": 3}
EXAMPLES = {
    "classification": (classification, CLASSIFICATION["digits"], None, ["accuracy"]),
    "segmentation": (segmentation, SEGMENTATION["scenes"], 32, ["mean_iou"]),
    "detection": (
        detection,
        DETECTION["scenes"],
        32,
        ["bbox_ap", "bbox_ap50", "segm_ap", "segm_ap50"],
    ),
}


def example(name):
    module, config, size, metrics = EXAMPLES[name]
    small = dataclasses.replace(config, **SMALL, image_size=size, checkpoint_every=None)
    return module, small, metrics


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains_and_writes_scores_and_a_picture(name, tmp_path):
    module, config, metrics = example(name)
    # Jorge's step of a detector takes long to compile: it is traced below.
    optimizer = "sgd" if name == "detection" else "jorge-whitening/sgd-schedule"
    run = Run(optimizer, 0, tmp_path, steps=3)
    rows = loop.train(module.make_task(config, seed=0), config, run)
    assert [row["step"] for row in rows] == [3]
    assert rows[0]["loss"] > 0
    for metric in metrics:
        assert 0 <= rows[0][metric] <= 1
    assert (tmp_path / "checkpoints" / "3").is_dir()
    if name != "classification":
        with Image.open(tmp_path / "predictions.png") as image:
            assert image.size[0] > 500


def kind(leaf):
    return f"{leaf.dtype}{leaf.shape}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_takes_every_optimizer(name):
    module, config, _ = example(name)
    task = module.make_task(config, seed=0)
    model = nnx.eval_shape(lambda: task.model(nnx.Rngs(0)))
    params = nnx.state(model, nnx.Param)
    for optimizer in optimizers.OPTIMIZERS:
        tx = optimizers.build(
            optimizer,
            config,
            steps=6,
            steps_per_epoch=task.steps_per_epoch,
            sharding=devices.place(1).split,
        ).transformation
        state = jax.eval_shape(tx.init, params)
        steps, new = jax.eval_shape(tx.update, params, state, params)
        for one, other in ((steps, params), (new, state)):
            assert jax.tree.map(kind, one) == jax.tree.map(kind, other), optimizer


@pytest.mark.parametrize("name", EXAMPLES)
def test_batches_depend_on_seed_and_step_alone(name):
    module, config, _ = example(name)
    task = module.make_task(config, seed=1)
    batches = task.train(0)
    first, second, again = next(batches), next(batches), next(task.train(1))
    for key, array in second.items():
        np.testing.assert_array_equal(array, again[key])
    other = next(module.make_task(config, seed=2).train(0))
    for another in (second, other):
        assert not np.array_equal(first["image"], another["image"])
    assert task.steps_per_epoch == 2


def test_configurations_of_detection_name_models_there_are():
    for name, config in DETECTION.items():
        assert config.model in MODELS, name
        assert ("faster" in name) == config.model.startswith("faster")
        assert ("cosine" in name) == (config.sgd.schedule.kind == "cosine")
