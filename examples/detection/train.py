"""The task: Mask R-CNN's losses, scored by the average precision of its boxes."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from examples.detection import drawing, input_pipeline, scoring
from examples.detection.detect import detect
from examples.detection.losses import losses
from examples.detection.models import make_model
from examples.shared import image_task, pretrained
from examples.shared.config import Config
from examples.shared.loop import Batch, Task

SHOWN = 8  # images in the picture
DIGITS = {number + 1: str(number) for number in range(10)}


def make_task(config: Config, *, seed: int, folder: pathlib.Path | None = None) -> Task:
    """Returns the task of a run with that seed; `folder` holds the data set."""
    source = image_task.load(input_pipeline.load, config, folder)
    split, truth = scoring.truth_of(source.test)
    with_masks = config.model.startswith("mask")

    def score(found: dict[str, np.ndarray]) -> dict[str, float]:
        results = scoring.to_coco(found, split)
        return scoring.score(truth, results, with_masks=with_masks)

    task = image_task.make(
        config,
        source,
        seed=seed,
        make_model=make_model,
        load_pretrained=lambda model, path: pretrained.load_torchvision(
            model.backbone.body, path, skip=("fc.",)
        ),
        loss=loss,
        count=search,
        score=score,
        metric="bbox_ap",
        combine=join,
    )

    def finish(model: Any, place: pathlib.Path) -> None:
        graph, state = nnx.split(model)
        find = jax.jit(lambda state, batch: search(nnx.merge(graph, state), batch))
        batch = next(iter(task.test()))
        found = jax.tree.map(np.asarray, find(state, batch))
        results = scoring.to_coco(found, split)
        numbers = [number for number in found["number"].tolist() if number][:SHOWN]
        names = {category: str(category) for category in range(source.classes)}
        names = DIGITS if config.dataset == "scenes" else names
        path = place / "predictions.png"
        drawing.draw(path, split, numbers, truth, results, names)

    return task._replace(finish=finish)


def loss(model: Any, batch: Batch, key: jax.Array) -> jax.Array:
    """Returns the sum of all losses."""
    return sum(losses(model, batch, key).values(), jnp.zeros(()))


def search(model: Any, batch: Batch) -> dict[str, jax.Array]:
    """Returns what is found in the images of a batch."""
    images, sizes = jnp.asarray(batch["image"]), jnp.asarray(batch["size"])
    found = detect(model, images, sizes)._asdict()
    found = {name: array for name, array in found.items() if array is not None}
    return {**found, "number": batch["number"], "size": batch["size"]}


def join(found: list[dict[str, jax.Array]]) -> dict[str, np.ndarray]:
    """Puts what was found in all batches one after the other."""
    return jax.tree.map(lambda *parts: np.concatenate(parts), *found)
