"""Mask R-CNN computes what torch computes, with weights that the converter loads.

The references are files of torch_reference/make_reference.py. Torch has neither
RoIAlign nor suppression of its own: these rest on the references in NumPy.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from examples.detection import masks
from examples.detection.models import MaskRCNN
from examples.shared.pretrained import load_torchvision, read_arrays, torch_name
from examples.shared.resnet import Bottleneck, FrozenNorm

FOLDER = pathlib.Path(__file__).parent / "torch_reference"
MODEL = FOLDER / "maskrcnn_bottleneck.npz"
TOLERANCE = 1e-4  # of the largest output


def make():
    """Returns the model of the reference with nothing but ones in it."""
    model = nnx.eval_shape(
        lambda: MaskRCNN(
            Bottleneck,
            (1, 1, 1, 1),
            widths=(4, 4, 4, 4),
            classes=3,
            pyramid_width=8,
            hidden=16,
            norm=FrozenNorm,
            rngs=nnx.Rngs(0),
        )
    )
    nnx.update(model, jax.tree.map(lambda x: jnp.ones(x.shape), nnx.state(model)))
    return model


def outputs(model, images):
    """Returns what the layers give, as the reference has it."""
    graph, state = nnx.split(model)

    @jax.jit
    def call(state, images):
        model = nnx.merge(graph, state)
        levels = model.features(images)
        found = {f"level{index}": level for index, level in enumerate(levels)}
        for index, level in enumerate(levels):
            found[f"logits{index}"], found[f"codes{index}"] = model.rpn(level)
        found["classes"], found["boxes"] = model.box_head(levels[0][:, :7, :7])
        found["masks"] = model.mask_head(levels[0][:, :14, :14])
        return found

    return call(state, images)


def test_a_loaded_model_computes_what_torch_computes():
    arrays = read_arrays(MODEL)
    model = make()
    load_torchvision(model, MODEL, prefix="state.")
    found = outputs(model, jnp.asarray(arrays["images"]))
    expected = {n[5:]: y for n, y in arrays.items() if n.startswith("eval.")}
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        wanted = wanted.reshape(found[name].shape)
        scale = np.abs(wanted).max()
        assert scale > 0.1, name
        difference = np.abs(np.asarray(found[name]) - wanted).max()
        assert difference < TOLERANCE * scale, name
        turned = np.asarray(found[name])[::-1]
        assert np.abs(turned - wanted).max() > 100 * TOLERANCE * scale, name


def test_names_are_torchvisions_and_a_plain_backbone_is_loaded_alone():
    model, arrays = make(), read_arrays(MODEL)
    state = nnx.state(model, (nnx.Param, nnx.BatchStat))
    found = {torch_name(path) for path, _ in nnx.to_flat_state(state)}
    names = {n[6:] for n in arrays if n.startswith("state.")}
    assert found == {n for n in names if not n.endswith("num_batches_tracked")}
    load_torchvision(model.backbone.body, MODEL, prefix="state.backbone.body.")
    kernel = arrays["state.backbone.body.conv1.weight"].transpose(2, 3, 1, 0)
    np.testing.assert_array_equal(model.backbone.body.conv1.kernel[...], kernel)
    assert (model.rpn.hidden.kernel[...] == 1).all()


# Operations.


@pytest.mark.parametrize("name", ["small", "large"])
def test_masks_are_scaled_as_by_torch(name):
    arrays = read_arrays(FOLDER / "detection_operations.npz")
    expected, box = arrays[f"pasted.{name}"], arrays[f"box.{name}"]
    found = masks.paste(arrays["grid"], box, 64, 64)
    unclear = np.abs(expected - 0.5) < 1e-5
    np.testing.assert_array_equal(found[~unclear], (expected > 0.5)[~unclear])
    assert found.any()
    assert not np.array_equal(found, masks.paste(arrays["grid"], box + 1, 64, 64))
