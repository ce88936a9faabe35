"""Mask R-CNN as in torchvision, on a ResNet with a feature pyramid.

The layers alone: `proposals.py`, `losses.py` and `detect.py` say what is done with
them. Each starts as torchvision's; `examples.shared.pretrained` loads a backbone that
was trained on ImageNet, or a whole model.
"""

import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from examples.detection.anchors import RATIOS
from examples.detection.roi_align import assign_levels, roi_align
from examples.detection.settings import TORCHVISION, Proposals, Settings
from examples.shared import models
from examples.shared.resnet import (
    STEMS,
    BasicBlock,
    Bottleneck,
    FrozenNorm,
    MakeNorm,
    ResNet,
    Stem,
    he_normal,
    make_norm,
    torch_bias,
    torch_uniform,
)


def as_matrix(init: nnx.Initializer) -> nnx.Initializer:
    """Draws a kernel as a matrix of the same fan-in, which compiles faster."""

    def draw(key, shape, dtype=jnp.float32, out_sharding=None):
        del out_sharding
        matrix = math.prod(shape[:-1]), shape[-1]
        return init(key, matrix, dtype).reshape(shape)

    return draw


# Torch's kaiming_uniform_ with a = 1: uniform within +-sqrt(3 / fan_in).
pyramid_init = as_matrix(nnx.initializers.variance_scaling(1.0, "fan_in", "uniform"))
proposal_init = as_matrix(nnx.initializers.normal(0.01))


class Pyramid(nnx.Module):
    """Features of equal width at each stride, with those of coarser ones added.

    The last level is every other cell of the one before.
    """

    def __init__(self, inputs: Sequence[int], width: int, **options):
        conv = partial(nnx.Conv, kernel_init=pyramid_init, **options)
        self.inner_blocks = nnx.List([conv(i, width, (1, 1)) for i in inputs])
        self.layer_blocks = nnx.List([conv(width, width, (3, 3)) for _ in inputs])

    def __call__(self, features: Sequence[jax.Array]) -> list[jax.Array]:
        levels, above = [], None
        for index in reversed(range(len(features))):
            inner = self.inner_blocks[index](features[index])
            above = inner if above is None else inner + double(above)
            levels.insert(0, self.layer_blocks[index](above))
        return [*levels, levels[-1][:, ::2, ::2]]


def double(x: jax.Array) -> jax.Array:
    """Repeats each cell of [n, rows, columns, channels] twice, each way."""
    n, rows, columns, channels = x.shape
    x = jnp.broadcast_to(x[:, :, None, :, None], (n, rows, 2, columns, 2, channels))
    return x.reshape(n, 2 * rows, 2 * columns, channels)


class Backbone(nnx.Module):
    """A ResNet and the pyramid on its stages."""

    def __init__(self, body: ResNet, inputs: Sequence[int], width: int, **options):
        self.body = body
        self.fpn = Pyramid(inputs, width, **options)

    def __call__(self, images: jax.Array) -> list[jax.Array]:
        stages = len(self.fpn.inner_blocks)
        return self.fpn(self.body.features(images)[-stages:])


class ProposalHead(nnx.Module):
    """Whether there is an object at each anchor, and the code of its box."""

    def __init__(self, width: int, anchors: int, **options):
        conv = partial(nnx.Conv, kernel_init=proposal_init, **options)
        self.hidden = conv(width, width, (3, 3))
        self.cls_logits = conv(width, anchors, (1, 1))
        self.bbox_pred = conv(width, 4 * anchors, (1, 1))

    def __call__(self, level: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns logits [images, anchors] and codes [images, anchors, 4]."""
        hidden = nnx.relu(self.hidden(level))
        logits, codes = self.cls_logits(hidden), self.bbox_pred(hidden)
        logits, codes = logits.astype(jnp.float32), codes.astype(jnp.float32)
        return logits.reshape(len(level), -1), codes.reshape(len(level), -1, 4)


class BoxHead(nnx.Module):
    """The class of a proposal, and the code of a better box for each class."""

    def __init__(self, width: int, bins: int, hidden: int, classes: int, **options):
        def linear(inputs: int, outputs: int) -> nnx.Linear:
            inits = {"kernel_init": torch_uniform, "bias_init": torch_bias(inputs)}
            return nnx.Linear(inputs, outputs, **inits, **options)

        self.fc6 = linear(width * bins**2, hidden)
        self.fc7 = linear(hidden, hidden)
        self.cls_score = linear(hidden, classes)
        self.bbox_pred = linear(hidden, 4 * classes)

    def __call__(self, pooled: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns logits [..., classes] and codes [..., classes, 4]."""
        *count, _, _, _ = pooled.shape
        x = jnp.moveaxis(pooled, -1, -3)  # channels first, as torch flattens them
        x = nnx.relu(self.fc6(x.reshape(*count, -1)))
        x = nnx.relu(self.fc7(x))
        logits = self.cls_score(x).astype(jnp.float32)
        codes = self.bbox_pred(x).astype(jnp.float32)
        return logits, codes.reshape(*count, logits.shape[-1], 4)


class MaskHead(nnx.Module):
    """The logits of a mask for each class, [..., bins, bins, classes]."""

    def __init__(self, width: int, layers: int, classes: int, **options):
        conv = partial(nnx.Conv, kernel_init=he_normal, **options)
        self.convs = nnx.List([conv(width, width, (3, 3)) for _ in range(layers)])
        self.conv5_mask = nnx.ConvTranspose(
            width,
            width,
            (2, 2),
            (2, 2),
            padding="VALID",
            transpose_kernel=True,  # as torch's
            kernel_init=he_normal,
            bias_init=torch_bias(4 * width),
            **options,
        )
        self.mask_fcn_logits = conv(width, classes, (1, 1), bias_init=torch_bias(width))

    def __call__(self, pooled: jax.Array) -> jax.Array:
        count = pooled.shape[:-3]
        x = pooled.reshape(-1, *pooled.shape[-3:])
        for conv in self.convs:
            x = nnx.relu(conv(x))
        x = self.mask_fcn_logits(nnx.relu(self.conv5_mask(x)))
        return x.astype(jnp.float32).reshape(*count, *x.shape[1:])


class MaskRCNN(nnx.Module):
    """Mask R-CNN, or Faster R-CNN if it has no mask head.

    Args:
        block: the kind of the backbone's blocks.
        depths: how many blocks each of its four stages has.
        classes: with the background, which is class 0.
        mask: whether there is a mask head.
        widths: of the backbone's stages.
        stem: the backbone's first layers.
        in_channels: of the images.
        first_stage: the first one that the pyramid is built on, from 1.
        norm: of the backbone.
        frozen_stages: how many of the backbone's stages have no gradient.
        pyramid_width: of the pyramid and of the mask head.
        hidden: width of the box head.
        mask_layers: how many 3x3 convolutions the mask head has.
        settings: the numbers that are not learned.
        dtype: of the computation.
        rngs: for the initial parameters.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        *,
        classes: int,
        mask: bool = True,
        widths: Sequence[int] = (64, 128, 256, 512),
        stem: Stem = "imagenet",
        in_channels: int = 3,
        first_stage: int = 1,
        norm: MakeNorm = make_norm,
        frozen_stages: int = 0,
        pyramid_width: int = 256,
        hidden: int = 1024,
        mask_layers: int = 4,
        settings: Settings = TORCHVISION,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        options = {"dtype": dtype, "rngs": rngs}
        body = ResNet(
            block,
            depths,
            classes=None,
            widths=widths,
            stem=stem,
            in_channels=in_channels,
            norm=norm,
            frozen_stages=frozen_stages,
            **options,
        )
        used = range(first_stage - 1, len(depths))
        outputs = [widths[stage] * block.expansion for stage in used]
        self.settings = settings
        first_stride = STEMS[stem][1] * (2 if stem == "imagenet" else 1)
        self.strides = tuple(first_stride << stage for stage in used)
        self.backbone = Backbone(body, outputs, pyramid_width, **options)
        self.rpn = ProposalHead(pyramid_width, len(RATIOS), **options)
        self.box_head = BoxHead(
            pyramid_width, settings.box_bins, hidden, classes, **options
        )
        self.mask_head = (
            MaskHead(pyramid_width, mask_layers, classes, **options) if mask else None
        )

    def features(self, images: jax.Array) -> list[jax.Array]:
        """Returns the levels of the pyramid; the last is for proposals alone."""
        rows, columns = images.shape[1:3]
        if rows % self.strides[-1] or columns % self.strides[-1]:
            raise ValueError(
                f"Images of {columns}x{rows} do not fit the strides of the pyramid: "
                f"pad them to multiples of {self.strides[-1]}."
            )
        return self.backbone(images)

    def pool(
        self, levels: Sequence[jax.Array], rois: jax.Array, bins: int
    ) -> jax.Array:
        """Returns the features of boxes [images, n, 4], [images, n, bins, bins, C]."""
        levels = list(levels)[: len(self.strides)]

        def of_image(levels: list[jax.Array], rois: jax.Array) -> jax.Array:
            level = assign_levels(rois, self.strides, self.settings.canonical_size)
            return roi_align(levels, self.strides, rois, level, bins)

        return jax.vmap(of_image)(levels, rois)


RESNET50 = partial(MaskRCNN, Bottleneck, (3, 4, 6, 3), norm=FrozenNorm, frozen_stages=1)
# For images of about 64 pixels on a CPU, without pretrained weights.
THIN = partial(
    MaskRCNN,
    BasicBlock,
    (1, 1, 1, 1),
    widths=(16, 24, 32, 48),
    stem="strided",
    first_stage=2,
    pyramid_width=32,
    hidden=64,
    mask_layers=2,
    settings=Settings(
        anchor_sizes=(10, 18, 30, 48),
        canonical_size=56,
        rpn_sample=64,
        train=Proposals(64, 64),
        test=Proposals(64, 48),
        box_sample=32,
        detections=20,
        mask_bins=7,
    ),
)
MODELS = {
    "maskrcnn-resnet50": RESNET50,
    "fasterrcnn-resnet50": partial(RESNET50, mask=False),
    "maskrcnn-thin": THIN,
    "fasterrcnn-thin": partial(THIN, mask=False),
}


def make_model(
    name: str,
    *,
    classes: int,
    in_channels: int = 3,
    dtype: DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
) -> MaskRCNN:
    """Returns the model of that name."""
    return models.make(
        MODELS,
        name,
        classes=classes,
        in_channels=in_channels,
        dtype=dtype,
        rngs=rngs,
    )
