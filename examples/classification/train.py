"""The task of a configuration; `examples.shared.classification` has loss and score."""

import pathlib

from examples.classification import input_pipeline
from examples.shared import classification, image_task
from examples.shared.config import Config
from examples.shared.loop import Task


def make_task(config: Config, *, seed: int, folder: pathlib.Path | None = None) -> Task:
    """Returns the task of a run with that seed; `folder` holds the data set."""
    source = image_task.load(input_pipeline.load, config, folder)
    return classification.make_task(config, source, seed=seed)
