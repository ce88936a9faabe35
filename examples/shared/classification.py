"""Image classification: ResNets by name, cross-entropy, accuracy."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.typing import DTypeLike

from examples.shared import image_task, models, pretrained
from examples.shared.config import Config
from examples.shared.data import Data
from examples.shared.loop import Batch, Task
from examples.shared.resnet import BasicBlock, Bottleneck, ResNet


def make_cifar_resnet(blocks: int, multiplier: float = 1, **options) -> ResNet:
    """Returns a ResNet of 6 * blocks + 2 layers, as He et al. made for CIFAR-10.

    Its shortcuts project where the shape changes; theirs pad with zeros there.
    """
    widths = [round(width * multiplier) for width in (16, 32, 64)]
    return ResNet(BasicBlock, (blocks,) * 3, widths=widths, stem="cifar", **options)


MODELS = {
    "resnet18": partial(ResNet, BasicBlock, (2, 2, 2, 2)),
    "resnet34": partial(ResNet, BasicBlock, (3, 4, 6, 3)),
    "resnet50": partial(ResNet, Bottleneck, (3, 4, 6, 3)),
    "resnet8": partial(make_cifar_resnet, 1),
    "resnet8-thin": partial(make_cifar_resnet, 1, 0.5),
    "resnet20": partial(make_cifar_resnet, 3),
}


def make_model(
    name: str,
    *,
    classes: int,
    in_channels: int = 3,
    dtype: DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
) -> ResNet:
    """Returns the model of that name, images (N, H, W, C) to logits (N, classes)."""
    return models.make(
        MODELS,
        name,
        classes=classes,
        in_channels=in_channels,
        dtype=dtype,
        rngs=rngs,
    )


def make_task(config: Config, source: Data, *, seed: int) -> Task:
    """Returns the task of training the configuration's model on `source`."""
    return image_task.make(
        config,
        source,
        seed=seed,
        make_model=make_model,
        load_pretrained=pretrained.load_torchvision,
        loss=loss,
        count=count,
        score=score,
        metric="accuracy",
    )


def loss(model: Any, batch: Batch, key: jax.Array) -> jax.Array:
    """Returns the mean cross-entropy."""
    del key
    return _cross_entropy(model(batch["image"]), batch["label"]).mean()


def count(model: Any, batch: Batch) -> dict[str, jax.Array]:
    """Counts hits and examples and sums the loss; a label of -1 is padding."""
    logits, labels = model(batch["image"]), batch["label"]
    real = labels >= 0
    hits = jnp.argmax(logits, -1) == labels
    return {
        "hits": jnp.sum(hits & real),
        "examples": jnp.sum(real),
        "loss": jnp.sum(_cross_entropy(logits, jnp.maximum(labels, 0)) * real),
    }


def score(total: dict[str, Any]) -> dict[str, float]:
    """Returns the accuracy and the mean loss."""
    examples = int(total["examples"])
    return {
        "accuracy": int(total["hits"]) / examples,
        "test_loss": float(total["loss"]) / examples,
    }


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    logits = logits.astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
