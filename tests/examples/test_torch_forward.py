"""The models compute what torch computes, with weights that the converter loads.

The references are files of torch_reference/make_reference.py, which says how to make
those of full size. They are checked if TORCH_REFERENCE names their folder.
"""

import functools
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


def thin_resnet(block, depths, widths, classes=5):
    return ResNet(block, depths, widths=widths, classes=classes, rngs=nnx.Rngs(0))


def thin_deeplab(block, widths, aspp_width, aux=True):
    return DeepLabV3(
        block,
        (1, 1, 2, 2),
        widths=widths,
        aspp_width=aspp_width,
        rates=(1, 2, 3),
        classes=3,
        aux=aux,
        rngs=nnx.Rngs(0),
    )


THIN = {
    "resnet_basic": lambda **options: thin_resnet(
        BasicBlock, (1, 2, 1, 1), (4, 4, 8, 8), **options
    ),
    "resnet_bottleneck": lambda **options: thin_resnet(
        Bottleneck, (2, 1, 1, 1), (4, 4, 4, 8), **options
    ),
    "deeplab_basic": lambda **options: thin_deeplab(
        BasicBlock, (4, 4, 8, 8), 8, **options
    ),
    "deeplab_bottleneck": lambda **options: thin_deeplab(
        Bottleneck, (4, 4, 4, 4), 4, **options
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
        """Returns the outputs by name, and the batch statistics after."""
        model = nnx.merge(graph, state)
        outputs = jax.tree.leaves(model(images))
        named = dict(zip(("output", "aux"), outputs, strict=False))
        return named, nnx.state(model, nnx.BatchStat)

    return call, state


@functools.cache
def compile_thin(name, mode):
    model, arrays = load_thin(name)
    return *compile_forward(model, mode), arrays


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
    call, state, arrays = compile_thin(name, mode)
    outputs, _ = call(state, arrays["images"])
    assert difference(outputs, arrays, mode) < TOLERANCE
    other = "train" if mode == "eval" else "eval"
    assert difference(outputs, arrays, other) > 10 * TOLERANCE


@pytest.mark.parametrize("name", THIN)
def test_each_array_of_the_file_matters(name):
    call, state, arrays = compile_thin(name, "eval")
    flat = nnx.to_flat_state(state)
    for index, (path, variable) in enumerate(flat):
        changed = list(flat)
        changed[index] = (path, variable.replace(1.5 * variable[...] + 0.1))
        outputs, _ = call(nnx.from_flat_state(changed), arrays["images"])
        assert difference(outputs, arrays) > TOLERANCE, path


@pytest.mark.parametrize("name", ["resnet_basic", "deeplab_bottleneck"])
def test_running_statistics_move_as_in_torch_but_for_the_unbiased_variance(name):
    call, state, arrays = compile_thin(name, "train")
    images = arrays["images"]
    _, batch_stats = call(state, images)
    ours = batch_stats.get("backbone", batch_stats)["bn1"]
    before = "state.backbone.bn1" if "backbone" in batch_stats else "state.bn1"
    mean = arrays["after.bn1.running_mean"]
    np.testing.assert_allclose(ours["mean"][...], mean, atol=1e-6)
    assert np.abs(mean - arrays[f"{before}.running_mean"]).max() > 1e-3
    # The stem halves the sides, rounding up.
    pixels = len(images) * ((images.shape[1] + 1) // 2) * ((images.shape[2] + 1) // 2)
    old = 0.9 * arrays[f"{before}.running_var"]
    added = arrays["after.bn1.running_var"] - old
    np.testing.assert_allclose(
        ours["var"][...] - old, added * (pixels - 1) / pixels, rtol=1e-4
    )
    assert not np.allclose(ours["var"][...] - old, added, rtol=1e-4)


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
        outputs, _ = call(state, arrays["images"])
        assert difference(outputs, arrays, mode) < tolerance


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


def test_kernels_and_statistics_go_to_their_layers_and_axes(save):
    model, arrays = load_thin("deeplab_basic")
    again = make_thin("deeplab_basic")
    assert not same(again, model)
    load_torchvision(again, save(state_dict("deeplab_basic")))  # as safetensors
    assert same(again, model)
    kernel = arrays["state.backbone.layer2.0.downsample.0.weight"]
    block = model.backbone.layer2[0]
    np.testing.assert_array_equal(
        block.downsample.conv.kernel[0, 0], kernel[:, :, 0, 0].T
    )
    np.testing.assert_array_equal(
        model.classifier.aspp.pooling.bn.var[...],
        arrays["state.classifier.0.convs.4.2.running_var"],
    )
    kernel = arrays["state.classifier.0.convs.3.0.weight"]
    ours = model.classifier.aspp.convs[3].conv.kernel[...]
    assert ours[2, 1, 3, 4] == kernel[4, 3, 2, 1] != kernel[4, 3, 1, 2]


def test_a_backbone_loads_from_a_plain_resnet(save):
    arrays = state_dict("deeplab_basic")
    plain = {
        n.removeprefix("backbone."): a
        for n, a in arrays.items()
        if n.startswith("backbone.")
    }
    plain |= {"fc.weight": np.ones((5, 8), "f4"), "fc.bias": np.ones(5, "f4")}
    path = save(plain)
    model, untouched = make_thin("deeplab_basic"), make_thin("deeplab_basic")
    whole, _ = load_thin("deeplab_basic")
    load_backbone(model, path)
    assert same(model.backbone, whole.backbone)
    assert same(model.classifier, untouched.classifier)
    assert same(model.aux_classifier, untouched.aux_classifier)
    assert not same(model.backbone, untouched.backbone)


def test_a_skipped_part_is_neither_read_nor_set():
    path = thin_path("resnet_basic")
    model = make_thin("resnet_basic", classes=9)
    before = np.asarray(model.fc.kernel)
    load_torchvision(model, path, prefix="state.", skip=("fc.",))
    np.testing.assert_array_equal(model.fc.kernel[...], before)
    assert not same(model, make_thin("resnet_basic", classes=9))
    without_aux = make_thin("deeplab_basic", aux=False)
    path = thin_path("deeplab_basic")
    load_torchvision(without_aux, path, prefix="state.", skip=("aux_classifier.",))
    assert same(without_aux.classifier, load_thin("deeplab_basic")[0].classifier)


def test_all_that_does_not_fit_is_told_at_once_and_nothing_is_set(save):
    arrays = state_dict("resnet_basic")
    del arrays["layer1.0.conv1.weight"]
    arrays["layer9.0.conv1.weight"] = np.zeros((4, 4, 3, 3), "f4")
    model, before = (
        make_thin("resnet_basic", classes=9),
        make_thin("resnet_basic", classes=9),
    )
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


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite_are_named(save, value):
    arrays = state_dict("resnet_basic")
    arrays["fc.bias"] = arrays["fc.bias"].copy()
    arrays["fc.bias"][1] = value
    arrays["bn1.weight"] = arrays["bn1.weight"].astype(np.int32)
    with pytest.raises(ValueError, match="does not fit the model") as error:
        load_torchvision(make_thin("resnet_basic"), save(arrays))
    assert "bn1.weight of int32, fc.bias of float32" in str(error.value)
