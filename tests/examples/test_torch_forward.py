"""The models compute what torch computes, with weights that the converter loads.

The references are files of torch_reference/make_reference.py, which says how to make
those of full size. They are checked if TORCH_REFERENCE names their folder.
"""

import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from examples.segmentation import models as segmentation
from examples.segmentation.models import DeepLabV3
from examples.shared import classification
from examples.shared.pretrained import load_backbone, load_torchvision, read_arrays
from examples.shared.resnet import BasicBlock, Bottleneck, ResNet

THIN_FOLDER = pathlib.Path(__file__).parent / "torch_reference"
FULL_FOLDER = os.environ.get("TORCH_REFERENCE")
TOLERANCE = 1e-4  # of the largest output
# Over the depth of a full DeepLabv3, batch statistics make 1e-4 of float32's rounding:
# torch itself is that far from torch in float64.
FULL_TOLERANCE = {"eval": TOLERANCE, "train": 5e-4}


THIN = {
    "resnet_basic": lambda classes=5: ResNet(
        BasicBlock,
        (1, 2, 1, 1),
        widths=(4, 4, 8, 8),
        classes=classes,
        rngs=nnx.Rngs(0),
    ),
    "deeplab_bottleneck": lambda aux=True: DeepLabV3(
        Bottleneck,
        (1, 1, 2, 2),
        widths=(4, 4, 4, 4),
        aspp_width=4,
        rates=(1, 2, 3),
        classes=3,
        aux=aux,
        rngs=nnx.Rngs(0),
    ),
}
FULL = {
    "resnet18": (classification, 1000),
    "resnet34": (classification, 1000),
    "resnet50": (classification, 1000),
    "deeplabv3-resnet50": (segmentation, 21),
}


def thin_path(name):
    return THIN_FOLDER / f"{name}.npz"


def make_thin(name, **options):
    """Returns the thin model with nothing but ones in it."""
    model = nnx.eval_shape(lambda: THIN[name](**options))
    nnx.update(model, jax.tree.map(lambda x: jnp.ones(x.shape), nnx.state(model)))
    return model


def load_thin(name):
    """Returns the thin model with torch's weights, and the arrays of its file."""
    model = make_thin(name)
    load_torchvision(model, thin_path(name), prefix="state.")
    return model, read_arrays(thin_path(name))


def compile_forward(model, mode):
    """Returns a function of state and images, and the state. It drops nothing."""
    model.set_attributes(
        deterministic=True,
        use_running_average=mode == "eval",
        raise_if_not_found=False,
    )
    graph, state = nnx.split(model)

    @jax.jit
    def call(state, images):
        """Returns the outputs by name."""
        outputs = jax.tree.leaves(nnx.merge(graph, state)(images))
        return dict(zip(("output", "aux"), outputs, strict=False))

    return call, state


def difference(outputs, arrays, mode="eval"):
    """Returns the largest difference to torch, over the largest output of torch."""
    expected = {n[5:]: y for n, y in arrays.items() if n.startswith("eval.")}
    assert outputs.keys() == expected.keys()
    expected = {name: arrays[f"{mode}.{name}"] for name in expected}
    assert all(np.std(y) > 0.1 for y in expected.values())
    return max(
        np.abs(np.asarray(outputs[name]) - y).max() / np.abs(y).max()
        for name, y in expected.items()
    )


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", THIN)
def test_thin_models_compute_what_torch_does(name, mode):
    model, arrays = load_thin(name)
    call, state = compile_forward(model, mode)
    outputs = call(state, arrays["images"])
    assert difference(outputs, arrays, mode) < TOLERANCE
    other = "train" if mode == "eval" else "eval"
    assert difference(outputs, arrays, other) > 10 * TOLERANCE


@pytest.mark.skipif(
    FULL_FOLDER is None,
    reason="TORCH_REFERENCE does not name a folder of full-size references; "
    "`make torch-check` makes them.",
)
@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_full_models_compute_what_torch_does(name):
    path = pathlib.Path(FULL_FOLDER or "") / f"{name}.npz"
    module, classes = FULL[name]
    model = nnx.eval_shape(
        lambda: module.make_model(name, classes=classes, rngs=nnx.Rngs(0))
    )
    load_torchvision(model, path, prefix="state.")
    arrays = read_arrays(path)
    for mode, tolerance in FULL_TOLERANCE.items():
        call, state = compile_forward(model, mode)
        assert difference(call(state, arrays["images"]), arrays, mode) < tolerance


# The converter.


def state_dict(name):
    arrays = read_arrays(thin_path(name))
    return {n[6:]: array for n, array in arrays.items() if n.startswith("state.")}


@pytest.fixture
def save(tmp_path):
    def save(arrays):
        path = tmp_path / "weights.safetensors"
        save_file({n: np.ascontiguousarray(a) for n, a in arrays.items()}, path)
        return path

    return save


def same(one, other):
    return jax.tree.all(
        jax.tree.map(
            np.array_equal,
            nnx.state(one, (nnx.Param, nnx.BatchStat)),
            nnx.state(other, (nnx.Param, nnx.BatchStat)),
        )
    )


def test_arrays_go_to_their_layers_and_axes_from_either_kind_of_file(save):
    model, arrays = load_thin("deeplab_bottleneck")
    again = make_thin("deeplab_bottleneck")
    assert not same(again, model)
    load_torchvision(again, save(state_dict("deeplab_bottleneck")))  # as safetensors
    assert same(again, model)
    kernel = arrays["state.classifier.0.convs.3.0.weight"]
    ours = model.classifier.aspp.convs[3].conv.kernel[...]
    assert ours[2, 1, 3, 2] == kernel[2, 3, 2, 1] != kernel[2, 3, 1, 2]
    np.testing.assert_array_equal(
        model.classifier.aspp.pooling.bn.var[...],
        arrays["state.classifier.0.convs.4.2.running_var"],
    )


def test_a_backbone_loads_from_a_plain_resnet(save):
    plain = {
        n.removeprefix("backbone."): a
        for n, a in state_dict("deeplab_bottleneck").items()
        if n.startswith("backbone.")
    }
    plain |= {"fc.weight": np.ones((5, 8), "f4"), "fc.bias": np.ones(5, "f4")}
    model, untouched = (make_thin("deeplab_bottleneck") for _ in range(2))
    load_backbone(model, save(plain))
    assert same(model.backbone, load_thin("deeplab_bottleneck")[0].backbone)
    assert same(model.classifier, untouched.classifier)
    assert not same(model.backbone, untouched.backbone)


def test_a_skipped_part_is_neither_read_nor_set():
    model = make_thin("resnet_basic", classes=9)
    path = thin_path("resnet_basic")
    load_torchvision(model, path, prefix="state.", skip=("fc.",))
    assert (model.fc.kernel[...] == 1).all()
    assert not same(model, make_thin("resnet_basic", classes=9))
    without_aux = make_thin("deeplab_bottleneck", aux=False)
    path = thin_path("deeplab_bottleneck")
    load_torchvision(without_aux, path, prefix="state.", skip=("aux_classifier.",))
    assert same(without_aux.classifier, load_thin("deeplab_bottleneck")[0].classifier)


def test_all_that_does_not_fit_is_told_at_once_and_nothing_is_set(save):
    arrays = state_dict("resnet_basic")
    del arrays["layer1.0.conv1.weight"]
    arrays["layer9.0.conv1.weight"] = np.zeros((4, 4, 3, 3), "f4")
    model, before = (make_thin("resnet_basic", classes=9) for _ in range(2))
    with pytest.raises(ValueError, match="does not fit the model") as error:
        load_torchvision(model, save(arrays))
    lines = str(error.value).splitlines()
    assert lines[0].endswith("weights.safetensors does not fit the model:")
    assert lines[1:4] == [
        "  the model has no layer9.0.conv1.weight",
        "  the file lacks layer1.0.conv1.weight",
        "  shapes differ (in the model's layout): "
        "fc.bias is (5,) in the file, (9,) in the model, "
        "fc.weight is (8, 5) in the file, (8, 9) in the model",
    ]
    assert 'skip=("fc.",)' in lines[4]
    assert same(model, before)


def test_a_long_list_is_cut_and_other_files_are_refused(tmp_path):
    model = make_thin("resnet_basic")
    with pytest.raises(ValueError, match=r"the file lacks .* and \d\d more\n") as error:
        load_torchvision(model, thin_path("resnet_basic"), prefix="no.")
    assert "the model has no" not in str(error.value)
    with pytest.raises(ValueError, match=r"resnet50.pth is neither .*save_file"):
        load_torchvision(model, tmp_path / "resnet50.pth")


def test_weights_that_are_not_finite_are_named(save):
    arrays = state_dict("resnet_basic")
    arrays["fc.bias"] = np.array([0, np.nan, 0, 0, 0], np.float32)
    arrays["bn1.weight"] = arrays["bn1.weight"].astype(np.int32)
    with pytest.raises(ValueError, match="does not fit the model") as error:
        load_torchvision(make_thin("resnet_basic"), save(arrays))
    assert "bn1.weight of int32, fc.bias of float32" in str(error.value)
