"""The task: cross-entropy of each pixel, scored by mean intersection over union."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from matplotlib.figure import Figure

from examples.segmentation import input_pipeline
from examples.segmentation.models import make_model
from examples.shared import image_task, pretrained
from examples.shared.config import Config
from examples.shared.loop import Batch, Task

AUX_WEIGHT = 0.5  # of the auxiliary head's loss, as torchvision's reference
SHOWN = 6  # examples in the picture


def make_task(config: Config, *, seed: int, folder: pathlib.Path | None = None) -> Task:
    """Returns the task of a run with that seed; `folder` holds the data set."""
    source = image_task.load(input_pipeline.load, config, folder)
    task = image_task.make(
        config,
        source,
        seed=seed,
        make_model=make_model,
        load_pretrained=pretrained.load_backbone,
        loss=loss,
        count=lambda model, batch: confusion(model, batch, source.classes),
        score=score,
        metric="mean_iou",
    )

    def finish(model: Any, place: pathlib.Path) -> None:
        draw(model, next(iter(task.test())), place / "predictions.png", source.classes)

    return task._replace(finish=finish)


def loss(model: Any, batch: Batch, key: jax.Array) -> jax.Array:
    """Returns the mean over labelled pixels, plus half of the auxiliary head's."""
    logits, aux = model(batch["image"], rngs=nnx.Rngs(dropout=key))
    value = _cross_entropy(logits, batch["label"])
    return (
        value
        if aux is None
        else value + AUX_WEIGHT * _cross_entropy(aux, batch["label"])
    )


def confusion(model: Any, batch: Batch, classes: int) -> jax.Array:
    """Counts pixels by true class (rows) and predicted class (columns)."""
    labels = batch["label"].ravel()
    predicted = jnp.argmax(model(batch["image"])[0], -1).ravel()
    index = jnp.where(labels >= 0, labels * classes + predicted, classes * classes)
    counts = jnp.bincount(index, length=classes * classes + 1)[:-1]
    return counts.reshape(classes, classes)


def score(total: np.ndarray) -> dict[str, float]:
    """Returns the mean IoU of the classes that occur, and the pixel accuracy."""
    total = np.asarray(total, np.float64)
    hits = np.diag(total)
    union = total.sum(0) + total.sum(1) - hits
    return {
        "mean_iou": float(np.mean(hits[union > 0] / union[union > 0])),
        "pixel_accuracy": float(hits.sum() / total.sum()),
    }


def draw(model: Any, batch: Batch, path: pathlib.Path, classes: int) -> None:
    """Draws image, truth and prediction; pixels without a label are black."""
    images, labels = batch["image"][:SHOWN], batch["label"][:SHOWN]
    predicted = np.asarray(jnp.argmax(model(jnp.asarray(images))[0], -1))
    figure = Figure(figsize=(4.6, 1.5 * len(images)), layout="constrained")
    grid = figure.subplots(len(images), 3, squeeze=False)
    for axes, title in zip(grid[0], ("image", "truth", "prediction"), strict=True):
        axes.set_title(title)
    for row, image, truth, guess in zip(grid, images, labels, predicted, strict=True):
        low, high = image.min(), image.max()
        row[0].imshow((image - low) / max(high - low, 1e-6))
        for axes, mask in zip(row[1:], (truth, guess), strict=True):
            shown = np.ma.masked_less(mask, 0)
            axes.imshow(shown, cmap="tab20", vmin=0, vmax=max(classes - 1, 1))
            axes.set_facecolor("black")
        for axes in row:
            axes.set(xticks=[], yticks=[])
    figure.savefig(path, dpi=110)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    real = labels >= 0
    values = optax.softmax_cross_entropy_with_integer_labels(
        logits.astype(jnp.float32), jnp.maximum(labels, 0)
    )
    return jnp.sum(values * real) / jnp.maximum(jnp.sum(real), 1)
