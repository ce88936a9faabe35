"""Parameter shapes of the torchvision models used in the benchmarks.

Every public function returns a nested dict of `jax.ShapeDtypeStruct` holding the
parameters of one torchvision model in Flax layout; nothing is allocated:

* convolution kernels are HWIO, `(height, width, in, out)`;
* dense kernels are `(in, out)`;
* batch norm has `scale` and `bias`; running statistics are not parameters;
* transposed convolution kernels are `(height, width, in, out)`, as in
  `flax.linen.ConvTranspose` with `transpose_kernel=False` (PyTorch stores
  `(in, out, height, width)`).

Run `python -m benchmarks.problems.shapes` to print the parameter totals.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

Tree = dict[str, Any]

_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
_WIDTHS = (64, 128, 256, 512)
# The private helpers build trees of plain shape tuples; `_structs` converts them.


def _conv(size: int, cin: int, cout: int, bias: bool = False) -> Tree:
    """Square convolution, or transposed convolution, with an optional bias."""
    kernel = {"kernel": (size, size, cin, cout)}
    return {**kernel, "bias": (cout,)} if bias else kernel


def _norm(channels: int) -> Tree:
    """Batch norm with affine parameters."""
    return {"scale": (channels,), "bias": (channels,)}


def _dense(cin: int, cout: int) -> Tree:
    """Dense layer with bias."""
    return {"kernel": (cin, cout), "bias": (cout,)}


def _conv_norm(size: int, cin: int, cout: int, norm: bool = True) -> Tree:
    """Convolution without bias, followed by batch norm unless `norm` is false."""
    conv = {"conv": _conv(size, cin, cout)}
    return {**conv, "norm": _norm(cout)} if norm else conv


def _residual(cin: int, convs: list[tuple[int, int]], norm: bool) -> Tree:
    """Residual block of `(size, out)` convolutions, projecting when `cin` differs."""
    block, channels = {}, cin
    for i, (size, cout) in enumerate(convs, 1):
        block[f"conv{i}"] = _conv_norm(size, channels, cout, norm)
        channels = cout
    if cin != channels:
        block["downsample"] = _conv_norm(1, cin, channels, norm)
    return block


def _basic(cin: int, width: int, norm: bool) -> Tree:
    """Block of ResNet-18 and ResNet-34."""
    return _residual(cin, [(3, width), (3, width)], norm)


def _bottleneck(cin: int, width: int, norm: bool) -> Tree:
    """Block of ResNet-50, with expansion four."""
    return _residual(cin, [(1, width), (3, width), (1, 4 * width)], norm)


def _stage(depth: int, cin: int, width: int, blocks: int, norm: bool) -> Tree:
    """Stage of `blocks` residual blocks, the first of which takes `cin` channels."""
    block, expansion = (_bottleneck, 4) if depth >= 50 else (_basic, 1)
    inputs = [cin] + [expansion * width] * (blocks - 1)
    return {f"block{i}": block(c, width, norm) for i, c in enumerate(inputs)}


def _backbone(depth: int, norm: bool = True) -> Tree:
    """ResNet without its classifier."""
    if depth not in _BLOCKS:
        raise ValueError(f"depth must be one of {sorted(_BLOCKS)}, got {depth}")
    tree, cin = {"stem": _conv_norm(7, 3, 64, norm)}, 64
    for i, (width, blocks) in enumerate(zip(_WIDTHS, _BLOCKS[depth], strict=True), 1):
        tree[f"layer{i}"] = _stage(depth, cin, width, blocks, norm)
        cin = 4 * width if depth >= 50 else width
    return tree


def _structs(shapes: Tree, dtype: DTypeLike) -> Tree:
    """Replaces the shape tuples of a tree by `jax.ShapeDtypeStruct`."""
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, dtype),
        shapes,
        is_leaf=lambda node: isinstance(node, tuple),
    )


def resnet(depth: int, classes: int = 1000, dtype: DTypeLike = jnp.float32) -> Tree:
    """Parameter shapes of torchvision's `resnet18`, `resnet34` or `resnet50`.

    Args:
        depth: Number of layers: 18, 34 or 50.
        classes: Number of output classes.
        dtype: Data type of all parameters.

    Returns:
        Nested dict of `jax.ShapeDtypeStruct`.

    Raises:
        ValueError: If `depth` is not 18, 34 or 50.
    """
    features = 2048 if depth >= 50 else 512
    return _structs({**_backbone(depth), "fc": _dense(features, classes)}, dtype)


def deeplabv3_resnet50(classes: int = 21, dtype: DTypeLike = jnp.float32) -> Tree:
    """Parameter shapes of torchvision's `deeplabv3_resnet50` with auxiliary head.

    Args:
        classes: Number of output classes, background included.
        dtype: Data type of all parameters.

    Returns:
        Nested dict of `jax.ShapeDtypeStruct`.
    """
    aspp = {f"atrous{rate}": _conv_norm(3, 2048, 256) for rate in (12, 24, 36)}
    aspp["pointwise"] = _conv_norm(1, 2048, 256)
    aspp["pooling"] = _conv_norm(1, 2048, 256)
    aspp["project"] = _conv_norm(1, 5 * 256, 256)
    logits = _conv(1, 256, classes, bias=True)
    shapes = {
        "backbone": _backbone(50),
        "classifier": {"aspp": aspp, "conv": _conv_norm(3, 256, 256), "logits": logits},
        "aux_classifier": {"conv": _conv_norm(3, 1024, 256), "logits": logits},
    }
    return _structs(shapes, dtype)


def maskrcnn_resnet50_fpn(
    classes: int = 91, dtype: DTypeLike = jnp.float32, frozen_norm: bool = True
) -> Tree:
    """Parameter shapes of torchvision's `maskrcnn_resnet50_fpn`.

    Only the backbone has norm layers. By default they are `FrozenBatchNorm2d`, all
    buffers, which gives torchvision's published total of 44,401,393. With neither
    detector nor backbone weights loaded, torchvision (from pull request 5443 on)
    uses `BatchNorm2d`: `frozen_norm=False`, 53,120 parameters more. The stem and
    first stage are included, although torchvision by default stops their gradients
    when weights are loaded.

    Args:
        classes: Number of output classes, background included.
        dtype: Data type of all parameters.
        frozen_norm: Whether the backbone norms are frozen, without parameters.

    Returns:
        Nested dict of `jax.ShapeDtypeStruct`.
    """
    levels, anchors, conv3 = range(4), 3, _conv(3, 256, 256, bias=True)
    shapes = {
        "backbone": _backbone(50, norm=not frozen_norm),
        "fpn": {
            "inner": {f"conv{i}": _conv(1, 256 << i, 256, bias=True) for i in levels},
            "layer": {f"conv{i}": conv3 for i in levels},
        },
        "rpn": {
            "conv": conv3,
            "cls_logits": _conv(1, 256, anchors, bias=True),
            "bbox_pred": _conv(1, 256, 4 * anchors, bias=True),
        },
        "box": {
            "fc6": _dense(7 * 7 * 256, 1024),
            "fc7": _dense(1024, 1024),
            "cls_score": _dense(1024, classes),
            "bbox_pred": _dense(1024, 4 * classes),
        },
        "mask": {
            **{f"conv{i}": conv3 for i in levels},
            "conv_transpose": _conv(2, 256, 256, bias=True),
            "logits": _conv(1, 256, classes, bias=True),
        },
    }
    return _structs(shapes, dtype)


def gpt2(layers: int = 12, width: int = 768, dtype: DTypeLike = jnp.float32) -> Tree:
    """Parameter shapes of GPT-2, by default of its smallest size; tied embeddings.

    Args:
        layers: Number of blocks.
        width: Of the residual stream.
        dtype: Data type of all parameters.

    Returns:
        Nested dict of `jax.ShapeDtypeStruct`.
    """
    block = {
        "norm1": _norm(width),
        "qkv": _dense(width, 3 * width),
        "project": _dense(width, width),
        "norm2": _norm(width),
        "up": _dense(width, 4 * width),
        "down": _dense(4 * width, width),
    }
    shapes = {
        "tokens": (50257, width),
        "positions": (1024, width),
        **{f"block{i}": block for i in range(layers)},
        "norm": _norm(width),
    }
    return _structs(shapes, dtype)


def llama(
    layers: int,
    width: int,
    hidden: int,
    keys: int,
    vocabulary: int = 32000,
    dtype: DTypeLike = jnp.float32,
) -> Tree:
    """Parameter shapes of Llama 2, with untied embeddings.

    Args:
        layers: Number of blocks.
        width: Of the residual stream.
        hidden: Width of the gated feed-forward layers.
        keys: Width of all keys, and of all values.
        vocabulary: Number of tokens.
        dtype: Data type of all parameters.

    Returns:
        Nested dict of `jax.ShapeDtypeStruct`.
    """
    block = {
        "norm1": (width,),
        "query": (width, width),
        "key": (width, keys),
        "value": (width, keys),
        "output": (width, width),
        "norm2": (width,),
        "gate": (width, hidden),
        "up": (width, hidden),
        "down": (hidden, width),
    }
    shapes = {
        "tokens": (vocabulary, width),
        **{f"block{i}": block for i in range(layers)},
        "norm": (width,),
        "head": (width, vocabulary),
    }
    return _structs(shapes, dtype)


def dense_layers(*widths: int, dtype: DTypeLike = jnp.float32) -> Tree:
    """Parameter shapes of dense layers of these widths, the inputs' first.

    Args:
        widths: Of the inputs and of each layer.
        dtype: Data type of all parameters.

    Returns:
        Nested dict of `jax.ShapeDtypeStruct`.
    """
    sides = enumerate(zip(widths, widths[1:], strict=False))
    return _structs({f"layer{i}": _dense(*own) for i, own in sides}, dtype)


# Those whose cost is measured.
MODELS = {
    "resnet18": lambda: resnet(18),
    "resnet50": lambda: resnet(50),
    "deeplabv3_resnet50": deeplabv3_resnet50,
    "maskrcnn_resnet50_fpn": maskrcnn_resnet50_fpn,
}


def main() -> None:
    """Prints the number of parameters of every model."""
    for name, make in {"resnet34": lambda: resnet(34), **MODELS}.items():
        total = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(make()))
        print(f"{name:22} {total:>12,}")


if __name__ == "__main__":
    main()
