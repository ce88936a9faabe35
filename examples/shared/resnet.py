"""ResNet as in torchvision, channels last.

Layers have torchvision's names, by which `pretrained.py` finds the weights. Compute
may be in bfloat16; parameters and the statistics of batch norm are always float32.

In training, torch divides the variance it adds to the running one by n - 1, flax by n,
where n counts the batch's pixels of a channel. Outputs in training are the same, and
the running variances differ by that factor only.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

Stem = Literal["imagenet", "strided", "cifar"]

# Size and stride of the first convolution; a max pool follows that of "imagenet".
STEMS: dict[Stem, tuple[int, int]] = {
    "imagenet": (7, 2),
    "strided": (3, 2),
    "cifar": (3, 1),
}


fan_out_normal = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")


def he_normal(key, shape, dtype=jnp.float32, out_sharding=None) -> jax.Array:
    """Draws a convolution's kernel as a matrix: the same numbers, compiled faster."""
    del out_sharding
    *window, inputs, outputs = shape
    matrix = inputs, math.prod(window) * outputs  # its fan-out is the kernel's
    return fan_out_normal(key, matrix, dtype).reshape(shape)


# Torch's default for the kernels of both Conv2d and Linear: +-1 / sqrt(fan_in).
torch_uniform = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def torch_bias(fan_in: int) -> nnx.Initializer:
    """Returns torch's default for biases, uniform within +-1 / sqrt(fan_in)."""
    bound = fan_in**-0.5

    def init(key, shape, dtype=jnp.float32, out_sharding=None):
        del out_sharding
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def make_conv(
    inputs: int,
    outputs: int,
    size: int,
    stride: int = 1,
    dilation: int = 1,
    *,
    kernel_init: nnx.Initializer = he_normal,
    dtype: DTypeLike,
    rngs: nnx.Rngs,
) -> nnx.Conv:
    """Returns a convolution without bias, padded symmetrically."""
    return nnx.Conv(
        inputs,
        outputs,
        (size, size),
        stride,
        padding=dilation * (size // 2),
        kernel_dilation=dilation,
        use_bias=False,
        kernel_init=kernel_init,
        dtype=dtype,
        rngs=rngs,
    )


def make_norm(width: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> nnx.BatchNorm:
    """Returns a batch norm that computes in float32 and returns `dtype`."""
    return nnx.BatchNorm(
        width,
        momentum=0.9,
        epsilon=1e-5,
        dtype=dtype,
        promote_dtype=_as_they_are,
        rngs=rngs,
    )


def _as_they_are(arrays: tuple, *, dtype: DTypeLike) -> tuple:
    """Keeps running statistics in float32, which flax would round in evaluation."""
    del dtype
    return arrays


class FrozenNorm(nnx.Module):
    """A batch norm of a trained model: statistics, scale and bias are constants."""

    def __init__(self, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        del rngs
        self.dtype = dtype
        self.scale = nnx.BatchStat(jnp.ones(width))
        self.bias = nnx.BatchStat(jnp.zeros(width))
        self.mean = nnx.BatchStat(jnp.zeros(width))
        self.var = nnx.BatchStat(jnp.ones(width))

    def __call__(self, x: jax.Array) -> jax.Array:
        factor = self.scale[...] * jax.lax.rsqrt(self.var[...] + 1e-5)
        shift = self.bias[...] - self.mean[...] * factor
        y = x * factor[None, None, None] + shift[None, None, None]
        return y.astype(self.dtype)


MakeNorm = Callable[..., nnx.Module]  # of width, dtype and rngs


class ConvNorm(nnx.Module):
    """A convolution and its batch norm."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int,
        stride: int = 1,
        dilation: int = 1,
        *,
        kernel_init: nnx.Initializer = he_normal,
        norm: MakeNorm = make_norm,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        self.conv = make_conv(
            inputs,
            outputs,
            size,
            stride,
            dilation,
            kernel_init=kernel_init,
            dtype=dtype,
            rngs=rngs,
        )
        self.bn = norm(outputs, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.bn(self.conv(x))


class BasicBlock(nnx.Module):
    """Two 3x3 convolutions, both with the block's dilation, and a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(
        self,
        inputs: int,
        width: int,
        stride: int,
        dilation: int,
        *,
        norm: MakeNorm = make_norm,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        options = {"norm": norm, "dtype": dtype, "rngs": rngs}
        conv = partial(make_conv, dtype=dtype, rngs=rngs)
        norm = partial(norm, dtype=dtype, rngs=rngs)
        self.conv1 = conv(inputs, width, 3, stride, dilation)
        self.bn1 = norm(width)
        self.conv2 = conv(width, width, 3, 1, dilation)
        self.bn2 = norm(width)
        self.downsample = make_shortcut(inputs, width, stride, **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return nnx.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nnx.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut; the 3x3 has stride and dilation."""

    expansion: ClassVar[int] = 4

    def __init__(
        self,
        inputs: int,
        width: int,
        stride: int,
        dilation: int,
        *,
        norm: MakeNorm = make_norm,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        options = {"norm": norm, "dtype": dtype, "rngs": rngs}
        conv = partial(make_conv, dtype=dtype, rngs=rngs)
        norm = partial(norm, dtype=dtype, rngs=rngs)
        outputs = self.expansion * width
        self.conv1 = conv(inputs, width, 1)
        self.bn1 = norm(width)
        self.conv2 = conv(width, width, 3, stride, dilation)
        self.bn2 = norm(width)
        self.conv3 = conv(width, outputs, 1)
        self.bn3 = norm(outputs)
        self.downsample = make_shortcut(inputs, outputs, stride, **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.bn1(self.conv1(x)))
        y = nnx.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return nnx.relu(y + (x if self.downsample is None else self.downsample(x)))


def make_shortcut(
    inputs: int, outputs: int, stride: int, **options: Any
) -> ConvNorm | None:
    """Returns a 1x1 projection where the block changes the shape, else None."""
    if inputs == outputs and stride == 1:
        return None
    return ConvNorm(inputs, outputs, 1, stride, **options)


class ResNet(nnx.Module):
    """Images (N, H, W, C) in, float32 logits (N, classes) out.

    Args:
        block: the kind of block.
        depths: how many blocks each stage has.
        classes: of the logits; with None there is no `fc`, only `features`.
        widths: of each stage; its outputs are `block.expansion` times wider.
        stem: the first layers, with stride 4 ("imagenet": a 7x7 convolution and a max
            pool), 2 ("strided": 3x3) or 1 ("cifar": 3x3).
        in_channels: of the images.
        replace_stride_with_dilation: for each stage after the first, whether it keeps
            the resolution and dilates its kernels instead. The first block of such a
            stage has the dilation of the stage before, as in torchvision.
        norm: makes the norm layers; `FrozenNorm` for a pretrained backbone.
        frozen_stages: how many stages have no gradient, nor has the stem if any has
            none.
        dtype: of the computation.
        rngs: for the initial parameters.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        *,
        classes: int | None,
        widths: Sequence[int] = (64, 128, 256, 512),
        stem: Stem = "imagenet",
        in_channels: int = 3,
        replace_stride_with_dilation: Sequence[bool] | None = None,
        norm: MakeNorm = make_norm,
        frozen_stages: int = 0,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        options = {"dtype": dtype, "rngs": rngs}
        self.stem = stem
        self.conv1 = make_conv(in_channels, widths[0], *STEMS[stem], **options)
        self.bn1 = norm(widths[0], **options)
        self.stages = len(depths)
        self.frozen_stages = frozen_stages
        make_block = partial(block, norm=norm, **options)
        dilated = replace_stride_with_dilation or (False,) * (self.stages - 1)
        inputs, dilation = widths[0], 1
        for index in range(self.stages):
            stride, first_dilation = min(index + 1, 2), dilation
            if index > 0 and dilated[index - 1]:
                stride, dilation = 1, dilation * stride
            blocks = [make_block(inputs, widths[index], stride, first_dilation)]
            inputs = widths[index] * block.expansion
            for _ in range(depths[index] - 1):
                blocks.append(make_block(inputs, widths[index], 1, dilation))
            setattr(self, f"layer{index + 1}", nnx.List(blocks))
        if classes is not None:
            self.fc = nnx.Linear(
                inputs,
                classes,
                kernel_init=torch_uniform,
                bias_init=torch_bias(inputs),
                **options,
            )

    def features(self, x: jax.Array) -> list[jax.Array]:
        """Returns the output of each stage: layer1, layer2, ..."""
        x = nnx.relu(self.bn1(self.conv1(x)))
        if self.stem == "imagenet":
            x = nnx.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        outputs = []
        for index in range(self.stages):
            for block in getattr(self, f"layer{index + 1}"):
                x = block(x)
            if index < self.frozen_stages:
                x = jax.lax.stop_gradient(x)
            outputs.append(x)
        return outputs

    def __call__(self, x: jax.Array) -> jax.Array:
        x = jnp.mean(self.features(x)[-1], axis=(1, 2))
        return self.fc(x).astype(jnp.float32)
