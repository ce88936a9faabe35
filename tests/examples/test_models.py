"""The examples' models: sizes, shapes, batch norm, dropout, precision, start."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from examples.segmentation import models as segmentation
from examples.shared import classification
from examples.shared.resnet import BasicBlock, Bottleneck, ResNet, he_normal
from tests.examples.random_models import fill


def shapes_of(module, name, **options):
    """Makes a model without values."""
    return nnx.eval_shape(lambda: module.make_model(name, rngs=nnx.Rngs(0), **options))


def build(module, name, **options):
    """Makes a model of four classes with random kernels."""
    return fill(shapes_of(module, name, classes=4, **options), variance=2)


def output_shape(model, size, channels=3, call=lambda model, x: model(x)):
    model.eval()
    graph, state = nnx.split(model)
    images = jax.ShapeDtypeStruct((2, *size, channels), jnp.float32)
    outputs = jax.eval_shape(lambda s, x: call(nnx.merge(graph, s), x), state, images)
    return jax.tree.map(lambda y: y.shape, outputs)


@pytest.fixture(scope="module")
def images():
    return jax.random.normal(jax.random.key(0), (4, 16, 16, 3))


@pytest.fixture(scope="module")
def deeplab():
    return build(segmentation, "deeplabv3-thin")


# Sizes. The counts of large models are torchvision's.


@pytest.mark.parametrize(
    ("module", "name", "classes", "parameters"),
    [
        (classification, "resnet18", 1000, 11_689_512),
        (classification, "resnet34", 1000, 21_797_672),
        (classification, "resnet50", 1000, 25_557_032),
        (classification, "resnet8", 10, 78_042),
        (classification, "resnet20", 10, 272_474),
        (segmentation, "deeplabv3-resnet50", 21, 42_004_074),
    ],
)
def test_models_have_their_number_of_parameters(module, name, classes, parameters):
    model = shapes_of(module, name, classes=classes)
    leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
    assert sum(leaf.size for leaf in leaves) == parameters


@pytest.mark.parametrize(
    ("module", "name"),
    [(m, n) for m in (classification, segmentation) for n in m.MODELS],
)
def test_models_give_logits_of_each_image_or_pixel(module, name):
    model = shapes_of(module, name, classes=7, in_channels=1)
    expected = (2, 7) if module is classification else ((2, 33, 40, 7),) * 2
    assert output_shape(model, (33, 40), channels=1) == expected


def test_without_its_auxiliary_head_a_model_gives_none():
    model = shapes_of(segmentation, "deeplabv3-thin", classes=7, aux=False)
    assert output_shape(model, (33, 40)) == ((2, 33, 40, 7), None)


@pytest.mark.parametrize("module", [classification, segmentation])
def test_an_unknown_name_is_answered_with_those_there_are(module):
    with pytest.raises(ValueError, match="'resnet51'; there are .*resnet18") as error:
        module.make_model("resnet51", classes=2, rngs=nnx.Rngs(0))
    assert all(name in str(error.value) for name in module.MODELS)


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
@pytest.mark.parametrize(
    ("dilated", "sides"),
    [
        (None, [16, 8, 4, 2]),
        ((False, False, True), [16, 8, 4, 4]),
        ((False, True, True), [16, 8, 8, 8]),
    ],
)
def test_dilated_stages_keep_the_resolution(block, dilated, sides):
    model = nnx.eval_shape(
        lambda: ResNet(
            block,
            (2, 2, 2, 2),
            classes=None,
            widths=(4, 4, 4, 4),
            replace_stride_with_dilation=dilated,
            rngs=nnx.Rngs(0),
        )
    )
    shapes = output_shape(model, (64, 64), call=lambda model, x: model.features(x))
    assert [shape[1] for shape in shapes] == sides


def test_both_convolutions_of_a_basic_block_are_dilated():
    # No comparison with torch has this: torchvision's basic block is not dilated.
    model = shapes_of(segmentation, "deeplabv3-resnet18", classes=2).backbone
    dilations = [
        (block.conv1.kernel_dilation, block.conv2.kernel_dilation)
        for layer in (model.layer3, model.layer4)
        for block in layer
    ]
    assert dilations == [(1, 1), (2, 2), (2, 2), (4, 4)]


# Batch norm, dropout, precision.


def batch_stats(model):
    return jax.tree.map(jnp.array, nnx.state(model, nnx.BatchStat))


def equal(one, other):
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


@nnx.jit
def call(model, images):
    return model(images)


def test_training_moves_the_statistics_and_evaluation_uses_them(images):
    model = build(classification, "resnet8-thin")
    start = batch_stats(model)
    model.train()
    trained = call(model, images)
    moved = batch_stats(model)
    before = model.conv1(images)  # statistics keep nine tenths
    mean, variance = np.mean(before, axis=(0, 1, 2)), np.var(before, axis=(0, 1, 2))
    np.testing.assert_allclose(model.bn1.mean[...], 0.1 * mean, atol=1e-6)
    np.testing.assert_allclose(model.bn1.var[...], 0.9 + 0.1 * variance, rtol=1e-4)
    leaves = zip(jax.tree.leaves(moved), jax.tree.leaves(start), strict=True)
    assert not any(np.array_equal(new, old) for new, old in leaves)
    model.eval()
    evaluated = call(model, images)
    assert equal(batch_stats(model), moved)
    assert not np.allclose(evaluated, trained, atol=1e-2)
    # In evaluation an image's logits are its own, in training the batch's.
    np.testing.assert_allclose(call(model, images[:2]), evaluated[:2], atol=1e-5)
    model.train()
    assert not np.allclose(call(model, images[:2]), trained[:2], atol=1e-2)


def test_small_differences_between_images_are_not_lost(deeplab):
    norm = nnx.clone(deeplab).classifier.aspp.pooling.bn
    norm.train()
    x = 100 + 0.1 * jax.random.normal(jax.random.key(0), (4, 1, 1, norm.num_features))
    x64 = np.asarray(x, np.float64)
    expected = (x64 - x64.mean(0)) / np.sqrt(x64.var(0) + 1e-5)
    np.testing.assert_allclose(norm(x), expected, atol=1e-3)
    norm.use_fast_variance = True
    assert not np.allclose(norm(x), expected, atol=1e-3)


@nnx.jit
def gradients(model, images, key, aux_weight):
    """Returns the gradients of a loss in training, and the logits."""

    def loss(model):
        logits, aux_logits = model(images, rngs=nnx.Rngs(dropout=key))
        total = jnp.mean(logits**2) + aux_weight * jnp.mean(aux_logits**2)
        return total, (logits, aux_logits)

    model.train()
    return nnx.grad(loss, has_aux=True)(model)


def test_dropout_is_that_of_the_given_key_which_only_training_needs(deeplab, images):
    keys = [jax.random.fold_in(jax.random.key(0), step) for step in (3, 3, 4)]
    once, again, other = (
        gradients(nnx.clone(deeplab), images, key, 0.5)[1] for key in keys
    )
    for one, same, another in zip(once, again, other, strict=True):
        np.testing.assert_array_equal(one, same)
        assert not np.allclose(one, another, atol=1e-3)
    assert not jax.tree.leaves(nnx.state(deeplab, nnx.RngState))
    model = nnx.clone(deeplab)
    model.eval()
    assert call(model, images)[0].shape == (4, 16, 16, 4)
    model.train()
    with pytest.raises(ValueError, match="no `rngs` argument"):
        call(model, images)


def test_gradients_reach_every_parameter(deeplab, images):
    def unreached(aux_weight):
        key = jax.random.key(1)
        grads, _ = gradients(nnx.clone(deeplab), images, key, aux_weight)
        grads = nnx.to_flat_state(grads)
        assert len(grads) == len(jax.tree.leaves(nnx.state(deeplab, nnx.Param)))
        return {path[0] for path, leaf in grads if not np.any(leaf[...])}

    assert unreached(0.5) == set()
    assert unreached(0.0) == {"aux_classifier"}


@pytest.mark.parametrize(
    ("module", "name"),
    [(classification, "resnet8-thin"), (segmentation, "deeplabv3-thin")],
)
def test_bfloat16_computes_nearly_the_same_with_state_in_float32(module, name, images):
    exact, rough = build(module, name), build(module, name, dtype=jnp.bfloat16)
    assert equal(nnx.state(exact), nnx.state(rough))
    for model in (exact, rough):
        model.set_attributes(deterministic=True, raise_if_not_found=False)
    outputs, rough_outputs = call(exact, images), call(rough, images)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(nnx.state(rough)))
    for y, z in zip(*map(jax.tree.leaves, (outputs, rough_outputs)), strict=True):
        assert z.dtype == jnp.float32
        assert 1e-4 < np.abs(y - z).max() / np.abs(y).max() < 0.1


def test_evaluation_in_bfloat16_keeps_the_statistics_in_float32():
    model = build(classification, "resnet8-thin", dtype=jnp.bfloat16)
    model.eval()
    # As bfloat16 the mean would be 256, and the output 1.
    model.bn1.mean[...] = jnp.full((8,), 257.0, jnp.float32)
    y = model.bn1(jnp.full((1, 1, 1, 8), 258.0, jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype(jnp.float32), 1, atol=1e-2)


# The start.


def test_backbones_start_he_normal_by_the_kernels_of_flax():
    flax = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")
    shape = (3, 3, 4, 8)
    for seed, agree in ((0, True), (1, False)):
        pair = he_normal(jax.random.key(0), shape), flax(jax.random.key(seed), shape)
        assert np.array_equal(*pair) == agree


def test_other_layers_start_as_in_torch():
    options = {"dtype": jnp.float32, "rngs": nnx.Rngs(0)}
    head = segmentation.FCNHead(256, 1000, **options)
    aspp = segmentation.ASPP(64, 16, (1, 2), **options)
    backbone = ResNet(
        BasicBlock, (1,), widths=(64,), stem="cifar", classes=1000, rngs=nnx.Rngs(0)
    )
    for parameter, fan_in in (
        (backbone.fc.kernel, 64),
        (backbone.fc.bias, 64),
        (head.hidden.conv.kernel, 9 * 256),
        (head.logits.bias, 64),
        (aspp.convs[2].conv.kernel, 9 * 64),
        (aspp.project.conv.kernel, 4 * 16),
    ):
        values = np.asarray(parameter[...])
        assert values.std() == pytest.approx((3 * fan_in) ** -0.5, rel=0.06)
        assert 0.98 * fan_in**-0.5 < np.abs(values).max() <= fan_in**-0.5
    # Backbones do use he_normal: sqrt(2 / fan_out).
    kernel = np.asarray(backbone.layer1[0].conv2.kernel[...])
    assert kernel.std() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.03)
