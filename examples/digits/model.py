"""A ResNet with one basic block a stage: 8x8 at width 8, 4x4 at 16, 2x2 at 32."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

STAGES = ((8, 1), (16, 2), (32, 2))  # (width, stride)


def as_matrix(key, shape, dtype=jnp.float32, out_sharding=None) -> jax.Array:
    """Flax's default for kernels, drawn as a matrix: it compiles faster."""
    del out_sharding
    matrix = math.prod(shape[:-1]), shape[-1]
    return nnx.initializers.lecun_normal()(key, matrix, dtype).reshape(shape)


def conv(inputs: int, outputs: int, size: int, stride: int, rngs: nnx.Rngs) -> nnx.Conv:
    return nnx.Conv(
        inputs,
        outputs,
        (size, size),
        strides=stride,
        use_bias=False,
        kernel_init=as_matrix,
        rngs=rngs,
    )


def norm(width: int, rngs: nnx.Rngs) -> nnx.BatchNorm:
    return nnx.BatchNorm(width, momentum=0.9, rngs=rngs)


class Block(nnx.Module):
    """Two 3x3 convolutions and a shortcut, projected where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int, rngs: nnx.Rngs):
        self.conv1 = conv(inputs, width, 3, stride, rngs)
        self.norm1 = norm(width, rngs)
        self.conv2 = conv(width, width, 3, 1, rngs)
        self.norm2 = norm(width, rngs)
        self.projected = inputs != width or stride != 1
        if self.projected:
            self.conv_shortcut = conv(inputs, width, 1, stride, rngs)
            self.norm_shortcut = norm(width, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.projected:
            x = self.norm_shortcut(self.conv_shortcut(x))
        return nnx.relu(x + y)


class ResNet(nnx.Module):
    """Images (N, 8, 8, 1) in, logits (N, 10) out."""

    def __init__(self, rngs: nnx.Rngs):
        width = STAGES[0][0]
        self.stem = conv(1, width, 3, 1, rngs)
        self.stem_norm = norm(width, rngs)
        blocks = []
        for next_width, stride in STAGES:
            blocks.append(Block(width, next_width, stride, rngs))
            width = next_width
        self.blocks = nnx.List(blocks)
        self.head = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.relu(self.stem_norm(self.stem(images)))
        for block in self.blocks:
            x = block(x)
        return self.head(jnp.mean(x, axis=(1, 2)))
