"""Mask R-CNN: its size, its losses, its detections."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks.problems import shapes
from examples.detection import detect as detect_module
from examples.detection import losses as detection_losses
from examples.detection import proposals
from examples.detection.losses import Regions, Truth
from examples.detection.models import make_model
from examples.detection.proposals import Proposed
from examples.detection.settings import Proposals, Settings
from tests.examples.random_models import fill
from tests.helpers import detection_reference as reference

SIZE, CLASSES = 32, 4


@functools.cache  # of a full model, a second or two
def shapes_of(name, classes):
    return nnx.eval_shape(lambda: make_model(name, classes=classes, rngs=nnx.Rngs(0)))


def sizes(model, kind=nnx.Param):
    return sorted(leaf.size for leaf in jax.tree.leaves(nnx.state(model, kind)))


def test_full_models_have_torchvisions_sizes_and_constant_norms():
    model = shapes_of("maskrcnn-resnet50", 91)
    assert sum(sizes(model)) == 44_401_393
    # ResNet-50's 25,557,032 without `fc` and norms, which are constant.
    assert sum(sizes(model.backbone.body)) == 23_454_912
    assert sum(sizes(model, nnx.BatchStat)) == 2 * 53_120
    assert sum(sizes(shapes_of("fasterrcnn-resnet50", 91))) == 41_755_286
    # The tables of costs have the same shapes.
    tables = shapes.MODELS["maskrcnn_resnet50_fpn"]()
    assert sizes(model) == sorted(leaf.size for leaf in jax.tree.leaves(tables))
    learned = nnx.state(shapes_of("maskrcnn-thin", CLASSES), nnx.Param)
    assert "scale" in {path[-1] for path, _ in nnx.to_flat_state(learned)}
    with pytest.raises(ValueError, match="No model is called 'yolo'; there are mask"):
        make_model("yolo", classes=2, rngs=nnx.Rngs(0))


# A thin model, compiled once.


def make_batch(seed=0, idle=0):
    """Two images with three and no true boxes, and `idle` more idle ones."""
    rng = np.random.default_rng(seed)
    boxes = np.zeros((2, 3 + idle, 4), np.float32)
    boxes[0, :3] = [[2, 3, 14, 15], [12, 10, 30, 26], [4, 16, 13, 29]]
    label = np.full((2, 3 + idle), -1, np.int32)
    label[0, :3] = [1, 3, 2]
    masks = np.zeros((2, 3 + idle, 14, 14), np.uint8)
    masks[0, :3] = 255 * (rng.random((3, 14, 14)) < 0.6)
    return {
        "image": rng.normal(size=(2, SIZE, SIZE, 3)).astype(np.float32),
        "size": np.array([[SIZE, SIZE], [24, 28]], np.int32),
        "boxes": boxes,
        "label": label,
        "masks": masks,
    }


@functools.cache
def thin():
    """The graph and state of a thin model."""
    model = fill(nnx.clone(shapes_of("maskrcnn-thin", CLASSES)), variance=1)
    model.train()
    return nnx.split(model, nnx.Param, ...)


@functools.cache
def compile_losses():
    graph, _, rest = thin()

    def total(params, batch):
        model = nnx.merge(graph, params, rest, copy=True)
        found = detection_losses.losses(model, batch, jax.random.key(3))
        return sum(found.values()), found

    return jax.jit(jax.grad(total, has_aux=True))


def losses_and_gradients(batch):
    """Returns the gradients, and the losses by name."""
    return compile_losses()(thin()[1], batch)


def test_idle_boxes_change_neither_losses_nor_gradients():
    one = losses_and_gradients(make_batch())
    other = losses_and_gradients(make_batch(idle=5))
    chex.assert_trees_all_close(one, other, rtol=1e-5, atol=1e-7)
    assert len(one[1]) == 5
    assert all(float(value) > 0 for value in one[1].values())
    for path, leaf in nnx.to_flat_state(one[0]):  # every parameter has a gradient
        assert np.isfinite(leaf[...]).all(), path
        assert np.any(leaf[...]), path
    real = make_batch(idle=5)
    real["boxes"][0, 6], real["label"][0, 6] = [20, 2, 30, 9], 1
    changed = losses_and_gradients(real)
    for name, value in changed[1].items():
        assert abs(value - one[1][name]) > 1e-4, name


def test_a_batch_without_boxes_has_finite_gradients():
    batch = make_batch()
    batch["label"][:] = -1
    grads, found = losses_and_gradients(batch)
    chex.assert_tree_all_finite(grads)
    assert found["boxes"] == found["masks"] == found["rpn_boxes"] == 0
    assert found["classes"] > 0


def test_detections_are_boxes_in_the_image():
    graph, params, rest = thin()
    batch = make_batch()

    @jax.jit
    def run(params):
        model = nnx.merge(graph, params, rest, copy=True)
        model.settings = dataclasses.replace(model.settings, minimum_score=0.0)
        model.eval()
        return detect_module.detect(
            model, jnp.asarray(batch["image"]), jnp.asarray(batch["size"])
        )

    found = run(params)
    assert found.boxes.shape == (2, 20, 4)
    assert found.masks.shape == (2, 20, 14, 14)
    for number in range(2):
        boxes, scores = np.asarray(found.boxes[number]), found.scores[number]
        height, width = batch["size"][number]
        assert (scores > 0).sum() > 3
        assert (np.diff(scores) <= 0).all()
        assert (boxes >= 0).all()
        assert (boxes[:, [0, 2]] <= width).all()
        assert (boxes[:, [1, 3]] <= height).all()
        assert ((found.classes[number] >= 1) & (found.classes[number] < CLASSES)).all()
    assert ((found.masks > 0) & (found.masks < 1)).all()
    with pytest.raises(ValueError, match="40x32 .* multiples of 16"):
        nnx.merge(graph, params, rest, copy=True).features(jnp.zeros((1, 32, 40, 3)))


def smooth_l1(values):
    """The loss of codes, by hand."""
    values = np.abs(values)
    return np.where(values < 1 / 9, 4.5 * values**2, values - 1 / 18).sum()


# The parts, by hand. Compiled: quicker than one small operation at a time.

best = jax.jit(detect_module.best, static_argnames="settings")
box_losses = jax.jit(detection_losses.box_losses, static_argnames="settings")
proposal_losses = jax.jit(detection_losses.proposal_losses, static_argnames="settings")
mask_loss = jax.jit(detection_losses.mask_loss)


def make_truth(boxes, labels, cells=4):
    """True boxes of one image, each full."""
    shape = (1, len(boxes), cells, cells)
    return Truth(
        jnp.asarray(boxes, jnp.float32)[None],
        jnp.array([labels]),
        jnp.full(shape, 255, jnp.uint8),
    )


def test_suppression_is_within_classes():
    rois = jnp.array([[2.0, 2, 12, 12], [2, 3, 12, 12], [20, 20, 30, 30], [0, 0, 0, 0]])
    logits = jnp.log(
        jnp.array([[0.1, 0.6, 0.3], [0.1, 0.5, 0.4], [0.2, 0.04, 0.76], [0, 1, 0]])
    )
    valid = jnp.array([True, True, True, False])
    settings = Settings(detections=5)
    found = best(
        logits, jnp.zeros((4, 3, 4)), rois, valid, jnp.array([32.0, 32.0]), settings
    )
    # Of class 1 the first, of class 2 the second: the others overlap these by 0.9.
    np.testing.assert_allclose(found.scores, [0.76, 0.6, 0.4, 0, 0], atol=1e-6)
    np.testing.assert_array_equal(found.classes[:3], [2, 1, 2])
    np.testing.assert_allclose(found.boxes[:3], rois[jnp.array([2, 0, 1])], atol=1e-5)
    assert (np.asarray(found.boxes[3:]) == 0).all()


def test_losses_of_boxes_are_those_by_hand():
    rng = np.random.default_rng(0)
    truth = make_truth([[2, 3, 14, 15], [12, 10, 30, 26]], [1, 2])
    near = np.array([[3, 3, 15, 14], [10, 11, 28, 26], [0, 0, 5, 5], [0, 0, 0, 0]])
    regions = Regions(
        jnp.asarray(near, jnp.float32)[None],
        jnp.array([[1, 2, 0, 0]]),
        jnp.array([[True, True, True, False]]),
        jnp.array([[0, 1, 0, 0]]),
    )
    logits = rng.normal(size=(1, 4, 3)).astype(np.float32)
    codes = rng.normal(size=(1, 4, 3, 4)).astype(np.float32)
    settings = Settings()
    found = box_losses(
        jnp.asarray(logits), jnp.asarray(codes), regions, truth, settings
    )
    entropy, distance = 0.0, 0.0
    for number, label in enumerate([1, 2, 0]):
        values = logits[0, number].astype(float)
        entropy += np.log(np.exp(values).sum()) - values[label]
        if label:
            wanted = reference.encode(
                np.asarray(truth.boxes[0, number]), near[number], settings.box_weights
            )
            distance += smooth_l1(codes[0, number, label] - np.array(wanted))
    np.testing.assert_allclose(found, [entropy / 3, distance / 3], rtol=1e-5)
    idle = regions._replace(valid=jnp.ones((1, 4), bool))
    other = box_losses(jnp.asarray(logits), jnp.asarray(codes), idle, truth, settings)
    assert abs(other[0] - found[0]) > 1e-3


def test_the_loss_of_masks_is_that_by_hand():
    rng = np.random.default_rng(0)
    mask = np.zeros((32, 32))
    mask[4:10, 6:12] = 1
    truth = make_truth([[6, 4, 12, 10]], [2], cells=6)
    near = np.array([[5, 3, 12, 11], [0, 0, 9, 9]], np.float32)
    regions = Regions(
        jnp.asarray(near)[None],
        jnp.array([[2, 0]]),
        jnp.ones((1, 2), bool),
        jnp.array([[0, 0]]),
    )
    logits = rng.normal(size=(1, 2, 4, 4, 3)).astype(np.float32)
    found = mask_loss(jnp.asarray(logits), regions, truth)
    wanted = reference.roi_align(mask, near[0], 1.0, 4, 2)
    values = logits[0, 0, :, :, 2].astype(float)
    entropy = np.log1p(np.exp(values)) - values * wanted
    np.testing.assert_allclose(found, entropy.mean(), rtol=1e-5)
    none = regions._replace(classes=jnp.zeros((1, 2), jnp.int32))
    assert mask_loss(jnp.asarray(logits), none, truth) == 0


def draw_proposed(*counts):
    """Anchors in an image of 64 x 64, and what a head might give for them."""
    rng = np.random.default_rng(0)
    low = rng.uniform(0, 40, (sum(counts), 2))
    near = np.concatenate([low, low + rng.uniform(6, 30, low.shape)], axis=1)
    return Proposed(
        jnp.asarray(near, jnp.float32),
        jnp.asarray(rng.normal(size=(1, sum(counts))), jnp.float32),
        jnp.asarray(0.2 * rng.normal(size=(1, sum(counts), 4)), jnp.float32),
        counts,
    )


def test_proposals_are_the_best_of_each_level_after_suppression():
    proposed = draw_proposed(30, 7)
    settings = Settings(rpn_threshold=0.1)
    size, limits = jnp.array([[50, 64]]), Proposals(before=10, after=9)

    def select(settings):
        def run(*arrays):
            whole = Proposed(*arrays, proposed.counts)
            return proposals.select(whole, size, settings, limits)

        return jax.jit(run)(*proposed[:3])

    found, valid = select(settings)
    expected = []
    for own in (range(30), range(30, 37)):
        logits = {i: float(proposed.logits[0, i]) for i in own}
        best = sorted(own, key=logits.get, reverse=True)[:10]
        codes = [np.asarray(proposed.codes[0, i]) for i in best]
        near = [np.asarray(proposed.anchors[i]) for i in best]
        decoded = [
            np.clip(reference.decode(*pair, settings.rpn_weights), 0, [64, 50, 64, 50])
            for pair in zip(codes, near, strict=True)
        ]
        kept = reference.nms(decoded, [logits[i] for i in best], 0.1)
        expected += [(logits[best[k]], decoded[k]) for k in kept]
    expected = sorted(expected, key=lambda pair: -pair[0])[:9]
    assert len(expected) == 8  # of 17: the others are suppressed, one place is idle
    wanted = np.array([box for _, box in expected])
    there = np.asarray(found[0])[np.asarray(valid[0])]
    np.testing.assert_allclose(there, wanted, atol=1e-3)
    other, _ = select(Settings(rpn_threshold=0.9))
    assert not np.allclose(np.asarray(other[0])[: len(wanted)], wanted, atol=1e-3)


def test_losses_of_proposals_are_those_by_hand():
    proposed = draw_proposed(12)
    near = np.asarray(proposed.anchors)
    boxes = np.stack([near[3] + 1, near[8] - 0.5, np.zeros(4)]).astype(np.float32)
    truth = make_truth(boxes, [2, 1, -1])
    # The sample has room for all.
    settings = Settings(rpn_sample=24, rpn_fraction=0.5)
    found = proposal_losses(proposed, truth, settings, jax.random.key(0))
    matches = reference.match(reference.ious(boxes[:2], near), 0.7, 0.3, True)
    entropy = distance = 0.0
    for number, match in enumerate(matches):
        logit = float(proposed.logits[0, number])
        if match != -2:
            entropy += np.log1p(np.exp(logit)) - logit * (match >= 0)
        if match >= 0:
            wanted = reference.encode(boxes[match], near[number], (1, 1, 1, 1))
            distance += smooth_l1(np.asarray(proposed.codes[0, number]) - wanted)
    count = (matches != -2).sum()
    assert (matches >= 0).sum() >= 2
    np.testing.assert_allclose(found, [entropy / count, distance / count], rtol=1e-4)
    fewer = dataclasses.replace(settings, rpn_sample=4)
    other = proposal_losses(proposed, truth, fewer, jax.random.key(0))
    assert abs(other[0] - found[0]) > 1e-3
