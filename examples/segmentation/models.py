"""DeepLabv3 as in torchvision, on ResNets of several sizes.

The backbone starts He-normal, the heads with torch's default initialization, as in
torchvision. `examples.shared.pretrained` loads a backbone trained on ImageNet.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from examples.shared import models
from examples.shared.resnet import (
    BasicBlock,
    Bottleneck,
    ConvNorm,
    ResNet,
    Stem,
    torch_bias,
    torch_uniform,
)

HeadConvNorm = partial(ConvNorm, kernel_init=torch_uniform)


class ASPP(nnx.Module):
    """Looks at the features at several rates of dilation and at the whole image.

    In training, the batch norm of the whole image's branch sees one value per channel
    of each image, so a batch must have two images or more.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        rates: Sequence[int],
        *,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        conv_norm = partial(HeadConvNorm, dtype=dtype, rngs=rngs)
        branches = [conv_norm(inputs, width, 1)]
        branches += [conv_norm(inputs, width, 3, dilation=rate) for rate in rates]
        self.convs = nnx.List(branches)
        self.pooling = conv_norm(inputs, width, 1)
        # Whole images differ little: E[x^2] - E[x]^2, flax's default, would cancel.
        self.pooling.bn.use_fast_variance = False
        self.project = conv_norm((len(rates) + 2) * width, width, 1)
        self.dropout = nnx.Dropout(0.5)

    def __call__(self, x: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
        branches = [nnx.relu(branch(x)) for branch in self.convs]
        image = nnx.relu(self.pooling(jnp.mean(x, axis=(1, 2), keepdims=True)))
        branches.append(jnp.broadcast_to(image, branches[0].shape))
        x = nnx.relu(self.project(jnp.concatenate(branches, axis=-1)))
        return self.dropout(x, rngs=rngs)


class DeepLabHead(nnx.Module):
    """ASPP, a 3x3 convolution, and the classifier of each pixel."""

    def __init__(
        self,
        inputs: int,
        width: int,
        rates: Sequence[int],
        classes: int,
        *,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        self.aspp = ASPP(inputs, width, rates, dtype=dtype, rngs=rngs)
        self.hidden = HeadConvNorm(width, width, 3, dtype=dtype, rngs=rngs)
        self.logits = make_classifier(width, classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
        return self.logits(nnx.relu(self.hidden(self.aspp(x, rngs))))


class FCNHead(nnx.Module):
    """A 3x3 convolution to a quarter of the width, and the classifier."""

    def __init__(self, inputs: int, classes: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        width = inputs // 4
        self.hidden = HeadConvNorm(inputs, width, 3, dtype=dtype, rngs=rngs)
        self.dropout = nnx.Dropout(0.1)
        self.logits = make_classifier(width, classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
        return self.logits(self.dropout(nnx.relu(self.hidden(x)), rngs=rngs))


def make_classifier(
    inputs: int, classes: int, *, dtype: DTypeLike, rngs: nnx.Rngs
) -> nnx.Conv:
    """Returns a 1x1 convolution with bias."""
    return nnx.Conv(
        inputs,
        classes,
        (1, 1),
        kernel_init=torch_uniform,
        bias_init=torch_bias(inputs),
        dtype=dtype,
        rngs=rngs,
    )


class DeepLabV3(nnx.Module):
    """Images (N, H, W, C) in, float32 logits (N, H, W, classes) out, twice.

    The second logits are those of the auxiliary head on the third stage, or None.

    The model holds no random state: in training each call needs
    `rngs=nnx.Rngs(dropout=key)` with the step's own key. A run that resumes at some
    step then drops what it would have dropped.

    Args:
        block: the kind of the backbone's blocks.
        depths: how many blocks each of its four stages has.
        classes: of the logits.
        widths: of the backbone's stages.
        stem: the backbone's first layers. Its last two stages are dilated, so that
            the features have stride 8 with "imagenet", 4 with "strided".
        in_channels: of the images.
        aspp_width: of the head.
        rates: of dilation in the head.
        aux: whether there is an auxiliary head.
        dtype: of the computation.
        rngs: for the initial parameters.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        *,
        classes: int,
        widths: Sequence[int] = (64, 128, 256, 512),
        stem: Stem = "imagenet",
        in_channels: int = 3,
        aspp_width: int = 256,
        rates: Sequence[int] = (12, 24, 36),
        aux: bool = True,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.backbone = ResNet(
            block,
            depths,
            classes=None,
            widths=widths,
            stem=stem,
            in_channels=in_channels,
            replace_stride_with_dilation=(False, True, True),
            dtype=dtype,
            rngs=rngs,
        )
        middle, last = (block.expansion * width for width in widths[-2:])
        self.classifier = DeepLabHead(
            last, aspp_width, rates, classes, dtype=dtype, rngs=rngs
        )
        self.aux_classifier = (
            FCNHead(middle, classes, dtype=dtype, rngs=rngs) if aux else None
        )

    def __call__(
        self, x: jax.Array, *, rngs: nnx.Rngs | None = None
    ) -> tuple[jax.Array, jax.Array | None]:
        *_, middle, last = self.backbone.features(x)
        logits = upsample(self.classifier(last, rngs), x.shape[1:3])
        if self.aux_classifier is None:
            return logits, None
        aux_logits = self.aux_classifier(middle, rngs)
        return logits, upsample(aux_logits, x.shape[1:3])


def upsample(logits: jax.Array, size: tuple[int, ...]) -> jax.Array:
    """Enlarges in float32, as torch's bilinear without aligned corners does."""
    shape = (logits.shape[0], *size, logits.shape[-1])
    return jax.image.resize(logits.astype(jnp.float32), shape, "bilinear")


MODELS = {
    "deeplabv3-resnet50": partial(DeepLabV3, Bottleneck, (3, 4, 6, 3)),
    "deeplabv3-resnet18": partial(DeepLabV3, BasicBlock, (2, 2, 2, 2)),
    # For images of about 64 pixels on a CPU: at those the features are 16x16.
    "deeplabv3-thin": partial(
        DeepLabV3,
        BasicBlock,
        (1, 1, 1, 1),
        widths=(8, 16, 32, 64),
        stem="strided",
        aspp_width=32,
        rates=(2, 4, 6),
    ),
}


def make_model(
    name: str,
    *,
    classes: int,
    in_channels: int = 3,
    dtype: DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
    aux: bool = True,
) -> DeepLabV3:
    """Returns the model of that name; see `DeepLabV3` for its inputs and outputs."""
    return models.make(
        MODELS,
        name,
        classes=classes,
        in_channels=in_channels,
        dtype=dtype,
        rngs=rngs,
        aux=aux,
    )
