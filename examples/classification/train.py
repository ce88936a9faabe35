"""The task: cross-entropy of a ResNet's logits, scored by accuracy."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import optax

from examples.classification import input_pipeline
from examples.classification.models import make_model
from examples.shared import image_task, pretrained
from examples.shared.config import Config
from examples.shared.loop import Batch, Task


def make_task(config: Config, *, seed: int, folder: pathlib.Path | None = None) -> Task:
    """The configuration's data set and model, for a run with that seed."""
    return image_task.make(
        config,
        image_task.load(input_pipeline.load, config, folder),
        seed=seed,
        make_model=make_model,
        load_pretrained=pretrained.load_torchvision,
        loss=loss,
        count=count,
        score=score,
        metric="accuracy",
    )


def loss(model: Any, batch: Batch, key: jax.Array) -> jax.Array:
    """Mean cross-entropy."""
    del key
    return _cross_entropy(model(batch["image"]), batch["label"]).mean()


def count(model: Any, batch: Batch) -> dict[str, jax.Array]:
    """Hits, examples and summed loss; a label of -1 is padding."""
    logits, labels = model(batch["image"]), batch["label"]
    real = labels >= 0
    hits = jnp.argmax(logits, -1) == labels
    return {
        "hits": jnp.sum(hits & real),
        "examples": jnp.sum(real),
        "loss": jnp.sum(_cross_entropy(logits, jnp.maximum(labels, 0)) * real),
    }


def score(total: dict[str, Any]) -> dict[str, float]:
    """Accuracy, and the mean loss."""
    examples = int(total["examples"])
    return {
        "accuracy": int(total["hits"]) / examples,
        "test_loss": float(total["loss"]) / examples,
    }


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    logits = logits.astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
