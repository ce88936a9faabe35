"""Operations on boxes and masks against slow references in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.detection import anchors, boxes, masks, matching
from examples.detection.nms import nms
from examples.detection.roi_align import SAMPLES, assign_levels, roi_align
from tests.helpers import detection_reference as reference

WEIGHTS = (10.0, 10.0, 5.0, 5.0)
STRIDES = (4, 8, 16)


def draw_boxes(rng, count, size=64.0):
    low = rng.uniform(0, 0.8 * size, (count, 2))
    high = np.minimum(low + rng.uniform(2, 0.6 * size, (count, 2)), size)
    return np.concatenate([low, high], axis=1).astype(np.float32)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_overlaps_are_those_of_each_pair(rng):
    one, other = draw_boxes(rng, 9), draw_boxes(rng, 7)
    other[2] = one[3]
    other[5] = 0  # idle
    expected = reference.ious(one, other)
    found = np.asarray(boxes.iou(jnp.asarray(one), jnp.asarray(other)))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert expected[3, 2] == 1
    assert (expected[:, 5] == 0).all()
    assert np.abs(found - expected[::-1]).max() > 0.1


def test_codes_are_those_of_the_reference_and_lead_back(rng):
    some, near = draw_boxes(rng, 20), draw_boxes(rng, 20)
    codes = boxes.encode(jnp.asarray(some), jnp.asarray(near), WEIGHTS)
    expected = [reference.encode(*p, WEIGHTS) for p in zip(some, near, strict=True)]
    np.testing.assert_allclose(codes, expected, rtol=1e-4, atol=1e-4)
    again = boxes.decode(codes, jnp.asarray(near), WEIGHTS)
    np.testing.assert_allclose(again, some, atol=1e-3)
    wrong = boxes.decode(codes, jnp.asarray(near), (1.0, 1.0, 1.0, 1.0))
    assert np.abs(np.asarray(wrong) - some).max() > 10
    large = np.asarray(codes).copy()  # decoded up to a limit
    large[0, 2], large[1, 3] = 30, 1000
    found = boxes.decode(jnp.asarray(large), jnp.asarray(near), WEIGHTS)
    expected = [reference.decode(*p, WEIGHTS) for p in zip(large, near, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_boxes_are_clipped_and_judged_by_their_sides():
    given = jnp.array([[-3.0, -1, 9, 4], [2, 2, 2.5, 40], [50, 60, 70, 80]])
    found = boxes.clip(given, jnp.array([30.0, 40.0]))  # height, width
    expected = [[0, 0, 9, 4], [2, 2, 2.5, 30], [40, 30, 40, 30]]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(boxes.at_least(found, 1.0), [True, False, False])


def test_anchors_lie_around_each_cell():
    for size in (8, 32):
        found = anchors.of_level((48, 64), (6, 4), size)
        expected = reference.anchors((6, 4), (8, 16), size, anchors.RATIOS)
        np.testing.assert_array_equal(found, expected)
        turned = reference.anchors((4, 6), (8, 16), size, anchors.RATIOS)
        assert not np.array_equal(found, turned)
    # By torchvision's AnchorGenerator.generate_anchors((32,), (0.5, 1.0, 2.0)).
    expected = [[-23, -11, 23, 11], [-16, -16, 16, 16], [-11, -23, 11, 23]]
    np.testing.assert_array_equal(anchors.around_origin(32), expected)


@pytest.mark.parametrize("keep_best", [False, True])
@pytest.mark.parametrize(("high", "low"), [(0.7, 0.3), (0.5, 0.5)])
def test_matches_are_those_of_the_reference(rng, high, low, keep_best):
    truth, candidates = draw_boxes(rng, 5), draw_boxes(rng, 60)
    truth[4] += 200  # which nothing touches
    candidates[7] = candidates[8] = truth[1] + 0.25  # a tie for the best
    quality = np.asarray(boxes.iou(jnp.asarray(truth), jnp.asarray(candidates)))
    options = dict(high=high, low=low, keep_best=keep_best)
    found = matching.match(jnp.asarray(quality), jnp.ones(5, bool), **options)
    expected = reference.match(quality, **options)
    np.testing.assert_array_equal(found, expected)
    assert set(expected) > {1, -1}
    other = reference.match(quality, high, low, not keep_best)
    assert not np.array_equal(found, other)
    # An idle box matches nothing.
    valid = jnp.arange(5) != 1
    found = matching.match(jnp.asarray(quality), valid, **options)
    expected = reference.match(np.delete(quality, 1, axis=0), **options)
    np.testing.assert_array_equal(found, expected + (expected >= 1))


@pytest.mark.parametrize(
    ("positives", "negatives"), [(3, 90), (40, 60), (0, 50), (20, 4), (0, 0), (64, 0)]
)
def test_samples_are_balanced(positives, negatives):
    labels = np.full(100, -1)
    order = np.random.default_rng(1).permutation(100)
    labels[order[:positives]] = 3
    labels[order[positives : positives + negatives]] = 0
    draw = jax.jit(matching.sample, static_argnames=("size", "fraction"))
    expected = reference.sample_counts(labels, 32, 0.25)
    drawn = []
    for seed in (0, 1):
        key = jax.random.key(seed)
        sample = draw(key, jnp.asarray(labels), size=32, fraction=0.25)
        chosen = np.asarray(sample.indices)[np.asarray(sample.valid)]
        assert len(set(chosen)) == len(chosen) == sum(expected)
        found = labels[chosen]
        assert ((found > 0).sum(), (found == 0).sum()) == expected
        assert (found[: expected[0]] > 0).all()  # the positive ones come first
        assert np.asarray(sample.positive).sum() == expected[0]
        drawn.append(set(chosen))
    if sum(expected) not in (positives + negatives, 0):
        assert drawn[0] != drawn[1]


@pytest.mark.parametrize("threshold", [0.2, 0.7])
def test_suppression_is_greedy(rng, threshold):
    some = draw_boxes(rng, 80)
    scores = rng.random(80).astype(np.float32)
    valid = rng.random(80) < 0.8
    scores[20] = scores[21] = 0.99  # a tie
    some[21] = some[20] + 0.1
    valid[20:22] = True
    arguments = (jnp.asarray(some), jnp.asarray(scores), jnp.asarray(valid))
    found = np.flatnonzero(nms(*arguments, threshold))
    there = np.flatnonzero(valid)
    expected = there[reference.nms(some[there], scores[there], threshold)]
    assert sorted(expected) == found.tolist()
    assert 20 in expected
    assert 21 not in expected
    other = there[reference.nms(some[there], scores[there], threshold + 0.1)]
    assert sorted(other) != found.tolist()


def test_features_of_boxes_are_those_of_the_reference(rng):
    shapes = ((16, 12), (8, 6), (4, 3))
    pyramid = [rng.normal(size=(*shape, 3)).astype(np.float32) for shape in shapes]
    # The whole image; smaller than a cell; at an edge; beyond it; idle.
    whole, tiny, edge = [0, 0, 48, 64], [9, 9, 9.5, 9.25], [40, 50, 48, 64]
    others = [whole, tiny, edge, [44, 60, 60, 90], [0, 0, 0, 0]]
    rois = np.concatenate([draw_boxes(rng, 12, 48.0), np.array(others, np.float32)])
    level = np.asarray(assign_levels(jnp.asarray(rois), STRIDES, 32.0))
    assert set(level) == {0, 1, 2}
    levels = [jnp.asarray(f) for f in pyramid]
    found = roi_align(levels, STRIDES, jnp.asarray(rois), jnp.asarray(level), 7)

    def expected(roi, where):
        scale = 1 / STRIDES[where]
        return reference.roi_align(pyramid[where], roi, scale, 7, SAMPLES)

    for own, roi, where in zip(found, rois, level, strict=True):
        np.testing.assert_allclose(own, expected(roi, where), atol=1e-5)
    moved = expected(rois[0] + 2, level[0])
    assert np.abs(np.asarray(found[0]) - moved).max() > 0.01
    # Levels change at the sizes of the paper.
    sides = [1, 111, 112, 223.9, 224, 447, 448, 2000]
    rois = jnp.array([[0.0, 0, side, side] for side in sides])
    found = assign_levels(rois, (4, 8, 16, 32), 224.0)
    np.testing.assert_array_equal(found, [0, 0, 1, 1, 2, 2, 3, 3])


def test_a_crop_has_the_share_of_each_cell():
    mask = np.zeros((6, 8), bool)
    mask[2:4, 3:6] = True
    for box, cells, expected in (
        ([3, 2, 6, 4], 5, np.full((5, 5), 255)),
        ([2, 1, 4, 3], 2, [[0, 0], [0, 255]]),
        ([2, 1, 4, 3], 1, [[64]]),
    ):
        found = masks.crop(mask, np.array(box), cells)
        np.testing.assert_array_equal(found, expected)


def test_targets_of_the_mask_head_are_those_of_whole_masks(rng):
    y, x = np.mgrid[:64, :64]
    mask = ((y - 33) / 12) ** 2 + ((x - 28) / 10) ** 2 < 1
    # With a cell for each pixel of its box, a crop has all that the mask has.
    box = np.array([18, 21, 42, 45], np.float32)
    crop = masks.crop(mask, box, 24) / np.float32(255)
    near = (box + rng.uniform(-4, 4, 4)).astype(np.float32)
    found = masks.project(*(jnp.asarray(a)[None] for a in (crop, box, near)), 14)[0]
    expected = reference.roi_align(mask.astype(float), near, 1.0, 14, SAMPLES)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    moved = reference.roi_align(mask.astype(float), near + 1, 1.0, 14, SAMPLES)
    assert np.abs(moved - expected).max() > 0.2
    again = masks.paste(masks.crop(mask, box, 28) / 255, box, 64, 64)
    assert (again & mask).sum() / (again | mask).sum() > 0.85
