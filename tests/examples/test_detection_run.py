"""A run of the detector: through the loop, with its log and picture."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from examples.detection import train
from examples.detection.configs import CONFIGS
from examples.detection.models import MODELS
from examples.shared import loop
from examples.shared.config import Run

# Of pycocotools, with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")
CONFIG = dataclasses.replace(
    CONFIGS["scenes"],
    batch_size=2,
    image_size=32,
    train_examples=4,
    test_examples=3,
    eval_every=3,
    checkpoint_every=None,
)


def test_batches_depend_on_seed_and_step_alone():
    task = train.make_task(CONFIG, seed=1)
    batches = task.train(0)
    first, second = next(batches), next(batches)
    again = next(task.train(1))
    for name, array in second.items():
        np.testing.assert_array_equal(array, again[name])
    assert not np.array_equal(first["image"], second["image"])
    assert task.steps_per_epoch == 2
    assert not np.array_equal(
        first["image"], next(train.make_task(CONFIG, seed=2).train(0))["image"]
    )


@pytest.mark.slow
def test_a_run_writes_scores_and_a_picture(tmp_path):
    task = train.make_task(CONFIG, seed=0)
    rows = loop.train(task, CONFIG, Run("sgd", 0, tmp_path, steps=3))
    assert [row["step"] for row in rows] == [3]
    assert rows[0]["loss"] > 0
    for name in ("bbox_ap", "bbox_ap50", "segm_ap", "segm_ap50"):
        assert 0 <= rows[0][name] <= 1
    with Image.open(tmp_path / "predictions.png") as image:
        assert image.size[0] > 500
    assert (tmp_path / "checkpoints" / "3").is_dir()


def test_configurations_name_models_there_are():
    for name, config in CONFIGS.items():
        assert config.model in MODELS, name
        assert ("faster" in name) == config.model.startswith("faster")
        assert ("cosine" in name) == (config.sgd.schedule.kind == "cosine")
