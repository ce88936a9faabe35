"""ResNets for ImageNet, and small ones for images of 32 pixels."""

from functools import partial

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

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
    if name not in MODELS:
        raise ValueError(f"No model is called {name!r}; there are {', '.join(MODELS)}.")
    return MODELS[name](
        classes=classes, in_channels=in_channels, dtype=dtype, rngs=rngs
    )
