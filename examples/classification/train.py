"""The task: cross-entropy of a ResNet's logits, scored by accuracy."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from examples.classification import input_pipeline
from examples.classification.models import make_model
from examples.shared import data, pretrained
from examples.shared.config import Config
from examples.shared.loop import Batch, Task


def make_task(config: Config, *, seed: int, folder: pathlib.Path | None = None) -> Task:
    """The configuration's data set and model, for a run with that seed."""
    source = input_pipeline.load(
        config.dataset,
        folder,
        image_size=config.image_size,
        train_examples=config.train_examples,
        test_examples=config.test_examples,
    )

    def model(rngs: nnx.Rngs) -> nnx.Module:
        network = make_model(
            config.model,
            classes=source.classes,
            in_channels=source.shape[-1],
            dtype=jnp.bfloat16 if config.bf16 else jnp.float32,
            rngs=rngs,
        )
        if config.pretrained:
            pretrained.load_torchvision(network, config.pretrained)
        return network

    def train(first_step: int) -> Any:
        return data.train_batches(
            source.train,
            source.augment,
            batch_size=config.batch_size,
            seed=seed,
            first_step=first_step,
            threads=config.threads,
        )

    def test() -> Any:
        return data.eval_batches(
            source.test,
            source.prepare,
            batch_size=config.batch_size,
            threads=config.threads,
        )

    return Task(
        model=model,
        loss=loss,
        count=count,
        score=score,
        train=train,
        test=test,
        steps_per_epoch=len(source.train) // config.batch_size,
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
