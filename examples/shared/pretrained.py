"""Weights of torchvision's models, converted to the models here.

Two lines of torch write such a file, for any model of torchvision with these names:

    model = torchvision.models.resnet50(weights="IMAGENET1K_V1")
    safetensors.torch.save_file(model.state_dict(), "resnet50.safetensors")

and `load_torchvision(make_model("resnet50", ...), "resnet50.safetensors")` reads it. An
.npz file with the same names works too. Pickles are never opened.

Each array goes to the layer of its name. Kernels change layout: (out, in, height,
width) to (height, width, in, out) in convolutions, (out, in) to (in, out) in `fc`.

Names of Mask R-CNN are those of today's torchvision. Its published files have older
names, which torchvision changes when it loads them: write `model.state_dict()`.
"""

import os
import re
from collections.abc import Iterable, Mapping

import jax.numpy as jnp
import numpy as np
from flax import nnx

from examples.shared.weights import read_arrays

# Torchvision numbers the layers of heads, and the two of a `ConvNorm`. Of the heads'
# names the first that fits counts.
HEADS = {
    "classifier.aspp.pooling.conv.": "classifier.0.convs.4.1.",
    "classifier.aspp.pooling.bn.": "classifier.0.convs.4.2.",
    "classifier.aspp.": "classifier.0.",
    "classifier.hidden.conv.": "classifier.1.",
    "classifier.hidden.bn.": "classifier.2.",
    "classifier.logits.": "classifier.4.",
    "aux_classifier.hidden.conv.": "aux_classifier.0.",
    "aux_classifier.hidden.bn.": "aux_classifier.1.",
    "aux_classifier.logits.": "aux_classifier.4.",
}
PAIRS = {".conv.": ".0.", ".bn.": ".1."}
# Mask R-CNN's names, after that; again the first that fits counts.
PATTERNS = {
    r"^(backbone\.fpn\.(?:inner|layer)_blocks\.\d+)\.": r"\1.0.",
    r"^rpn\.hidden\.": "rpn.head.conv.0.0.",
    r"^rpn\.": "rpn.head.",
    r"^box_head\.(fc[67])\.": r"roi_heads.box_head.\1.",
    r"^box_head\.": "roi_heads.box_predictor.",
    r"^mask_head\.convs\.(\d+)\.": r"roi_heads.mask_head.\1.0.",
    r"^mask_head\.": "roi_heads.mask_predictor.",
}
LEAVES = {
    "kernel": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}
LISTED = 10  # names of each kind in an error


def load_torchvision(
    model: nnx.Module,
    path: str | os.PathLike[str],
    *,
    prefix: str = "",
    skip: Iterable[str] = (),
) -> None:
    """Sets the parameters and batch statistics of `model` to those of a file.

    Args:
        model: a `ResNet`, `DeepLabV3` or `MaskRCNN`.
        path: a .safetensors or .npz file with torchvision's names.
        prefix: only names that start with it are read; it is removed from them.
        skip: names that start with one of these are not read, and those of the model
            are not set, e.g. ("fc.",) for another number of classes.

    Raises:
        ValueError: the file and the model differ in names or shapes, or an array has
            values that are not finite. The model is unchanged then.
    """
    entries = {
        name.removeprefix(prefix): array
        for name, array in read_arrays(path).items()
        if name.startswith(prefix) and not name.endswith("num_batches_tracked")
    }
    state = nnx.to_flat_state(nnx.state(model, (nnx.Param, nnx.BatchStat)))
    targets = {torch_name(keys): (keys, variable) for keys, variable in state}
    skip = tuple(skip)
    entries = {n: array for n, array in entries.items() if not n.startswith(skip)}
    targets = {n: target for n, target in targets.items() if not n.startswith(skip)}
    arrays = {n: to_jax_layout(array) for n, array in entries.items()}
    _check(path, arrays, {n: variable for n, (_, variable) in targets.items()})
    loaded = [
        (keys, variable.replace(jnp.asarray(arrays[n], variable.dtype)))
        for n, (keys, variable) in targets.items()
    ]
    nnx.update(model, nnx.from_flat_state(loaded))


def load_backbone(
    model: nnx.Module, path: str | os.PathLike[str], *, prefix: str = ""
) -> None:
    """Sets `model.backbone` to a plain ResNet's file; heads stay as initialized."""
    load_torchvision(model.backbone, path, prefix=prefix, skip=("fc.",))


def torch_name(keys: Iterable[str | int]) -> str:
    """Returns torchvision's name of the variable at a path of the model."""
    *module, leaf = map(str, keys)
    name = ".".join([*module, LEAVES[leaf]])
    head = next((head for head in HEADS if name.startswith(head)), None)
    if head is not None:
        name = HEADS[head] + name.removeprefix(head)
    for ours, theirs in PAIRS.items():
        name = name.replace(ours, theirs)
    pattern = next((pattern for pattern in PATTERNS if re.match(pattern, name)), None)
    return name if pattern is None else re.sub(pattern, PATTERNS[pattern], name)


def to_jax_layout(array: np.ndarray) -> np.ndarray:
    """Transposes a kernel of torch; a vector stays as it is."""
    axes = {2: (1, 0), 4: (2, 3, 1, 0)}.get(array.ndim)
    return array if axes is None else array.transpose(axes)


def _check(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray],
    variables: Mapping[str, nnx.Variable],
) -> None:
    faults = {
        "the model has no": sorted(arrays.keys() - variables.keys()),
        "the file lacks": sorted(variables.keys() - arrays.keys()),
        "shapes differ (in the model's layout):": [
            f"{n} is {arrays[n].shape} in the file, {variables[n].shape} in the model"
            for n in variables
            if n in arrays and arrays[n].shape != variables[n].shape
        ],
        "not finite floating-point numbers:": [
            f"{n} of {array.dtype}"
            for n, array in sorted(arrays.items())
            if array.dtype.kind != "f" or not np.isfinite(array).all()
        ],
    }
    lines = []
    for fault, names in faults.items():
        rest = [f"and {len(names) - LISTED} more"] if len(names) > LISTED else []
        if names:
            lines.append(f"  {fault} {', '.join(names[:LISTED] + rest)}")
    if lines:
        raise ValueError(
            f"{os.fspath(path)} does not fit the model:\n"
            + "\n".join(lines)
            + "\nBuild the model with the file's architecture and number of classes, "
            'choose a part of the file with `prefix`, or skip one, e.g. skip=("fc.",).'
        )
