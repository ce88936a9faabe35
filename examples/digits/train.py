"""The task: classification of the digits."""

import pathlib

from examples.shared import classification, digits
from examples.shared.config import Config
from examples.shared.loop import Task


def make_task(config: Config, *, seed: int, folder: pathlib.Path | None = None) -> Task:
    """Returns the task of a run with that seed."""
    if folder or config.dataset != "digits" or config.image_size not in (None, 8):
        raise ValueError(
            "This example trains on scikit-learn's 8 x 8 digits, which need no folder; "
            "examples.classification takes other data."
        )
    source = digits.load_data().keep(config.train_examples, config.test_examples)
    return classification.make_task(config, source, seed=seed)
