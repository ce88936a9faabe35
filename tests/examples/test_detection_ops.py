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


def draw_boxes(rng, count, size=64.0):
    low = rng.uniform(0, 0.8 * size, (count, 2))
    high = np.minimum(low + rng.uniform(2, 0.6 * size, (count, 2)), size)
    return np.concatenate([low, high], axis=1).astype(np.float32)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# Boxes.


def test_overlaps_are_those_of_each_pair(rng):
    one, other = draw_boxes(rng, 9), draw_boxes(rng, 7)
    other[2] = one[3]
    other[5] = 0  # idle
    expected = reference.ious(one, other)
    found = boxes.iou(jnp.asarray(one), jnp.asarray(other))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert expected[3, 2] == 1
    assert (expected[:, 5] == 0).all()
    assert np.abs(np.asarray(found) - expected[::-1]).max() > 0.1
    assert boxes.iou(jnp.zeros((1, 4)), jnp.zeros((1, 4)))[0, 0] == 0


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
    assert np.isfinite(np.asarray(found)).all()


def test_boxes_are_clipped_and_judged_by_their_sides():
    given = jnp.array([[-3.0, -1, 9, 4], [2, 2, 2.5, 40], [50, 60, 70, 80]])
    found = boxes.clip(given, jnp.array([30.0, 40.0]))  # height, width
    expected = [[0, 0, 9, 4], [2, 2, 2.5, 30], [40, 30, 40, 30]]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(boxes.at_least(found, 1.0), [True, False, False])


# Anchors.


def test_anchors_lie_around_each_cell():
    for size in (8, 32):
        found = anchors.of_level((48, 64), (6, 4), size)
        expected = reference.anchors((6, 4), (8, 16), size, anchors.RATIOS)
        np.testing.assert_array_equal(found, expected)
        assert found.shape == (6 * 4 * 3, 4)
        turned = reference.anchors((4, 6), (8, 16), size, anchors.RATIOS)
        assert not np.array_equal(found, turned)
    # By torchvision's AnchorGenerator.generate_anchors((32,), (0.5, 1.0, 2.0)).
    expected = [[-23, -11, 23, 11], [-16, -16, 16, 16], [-11, -23, 11, 23]]
    np.testing.assert_array_equal(anchors.around_origin(32), expected)


# Matching.


@pytest.mark.parametrize("keep_best", [False, True])
@pytest.mark.parametrize(("high", "low"), [(0.7, 0.3), (0.5, 0.5)])
def test_matches_are_those_of_the_reference(rng, high, low, keep_best):
    truth, candidates = draw_boxes(rng, 5), draw_boxes(rng, 60)
    candidates[7] = candidates[8] = truth[1] + 0.25  # a tie for the best
    quality = np.asarray(boxes.iou(jnp.asarray(truth), jnp.asarray(candidates)))
    options = dict(high=high, low=low, keep_best=keep_best)
    found = matching.match(jnp.asarray(quality), jnp.ones(5, bool), **options)
    expected = reference.match(quality, **options)
    np.testing.assert_array_equal(found, expected)
    assert set(expected) > {1, -1}
    other = reference.match(quality, high, low, not keep_best)
    assert not np.array_equal(found, other)


@pytest.mark.parametrize("place", [0, 3])
def test_idle_boxes_match_nothing(rng, place):
    truth, candidates = draw_boxes(rng, 4), jnp.asarray(draw_boxes(rng, 40))
    options = dict(high=0.7, low=0.3, keep_best=True)

    def matches(truth, valid):
        quality = boxes.iou(jnp.asarray(truth), candidates)
        return np.asarray(matching.match(quality, jnp.asarray(valid), **options))

    alone = matches(np.delete(truth, place, axis=0), [True] * 3)
    padded = matches(truth, [number != place for number in range(4)])
    shifted = np.where(alone >= place, alone + 1, alone)
    np.testing.assert_array_equal(padded, shifted)
    assert not np.array_equal(matches(truth, [True] * 4), shifted)
    assert (matches(truth, [False] * 4) == matching.BACKGROUND).all()


def test_a_box_that_nothing_touches_keeps_none():
    far = jnp.array([[100.0, 100, 110, 110], [0, 0, 10, 10]])
    quality = boxes.iou(far, jnp.array([[0.0, 0, 10, 8], [20, 20, 30, 30]]))
    found = matching.match(
        quality, jnp.ones(2, bool), high=0.9, low=0.3, keep_best=True
    )
    np.testing.assert_array_equal(found, [1, -1])


@pytest.mark.parametrize(
    ("positives", "negatives"), [(3, 90), (40, 60), (0, 50), (20, 4), (0, 0), (64, 0)]
)
def test_samples_are_balanced(positives, negatives):
    labels = np.full(100, -1)
    order = np.random.default_rng(1).permutation(100)
    labels[order[:positives]] = 3
    labels[order[positives : positives + negatives]] = 0
    draw = jax.jit(matching.sample, static_argnames=("size", "fraction"))
    drawn = [
        draw(jax.random.key(seed), jnp.asarray(labels), size=32, fraction=0.25)
        for seed in (0, 1)
    ]
    expected = reference.sample_counts(labels, 32, 0.25)
    for sample in drawn:
        chosen = np.asarray(sample.indices)[np.asarray(sample.valid)]
        assert len(set(chosen)) == len(chosen) == sum(expected)
        found = labels[chosen]
        assert ((found > 0).sum(), (found == 0).sum()) == expected
        # The positive ones come first.
        assert (found[: expected[0]] > 0).all()
        assert np.asarray(sample.positive).sum() == expected[0]
    if sum(expected) not in (positives + negatives, 0):
        assert set(np.asarray(drawn[0].indices)) != set(np.asarray(drawn[1].indices))
    few = draw(jax.random.key(0), jnp.array([0, 2, -1]), size=8, fraction=0.5)
    assert np.asarray(few.indices)[np.asarray(few.valid)].tolist() == [1, 0]


def test_each_candidate_is_drawn_as_often_as_the_others():
    labels = jnp.zeros(10, jnp.int32)
    keys = jax.random.split(jax.random.key(0), 2000)
    drawn = jax.vmap(
        lambda key: matching.sample(key, labels, size=3, fraction=0.5).indices
    )(keys)
    counts = np.bincount(np.asarray(drawn).ravel(), minlength=10)
    assert counts.sum() == 6000
    assert np.abs(counts - 600).max() < 100  # 4.9 deviations of a binomial


# Suppression.


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


def test_a_chain_of_boxes_is_decided_from_the_top():
    # Each overlaps the next one by half, so every other one stays.
    left = jnp.arange(12.0)
    chain = jnp.stack([left, 0 * left, left + 3, 0 * left + 3], axis=1)
    scores = jnp.linspace(1, 0.1, 12)
    keep = nms(chain, scores, jnp.ones(12, bool), 0.4)
    np.testing.assert_array_equal(keep, np.arange(12) % 2 == 0)
    assert not nms(chain, scores, jnp.zeros(12, bool), 0.4).any()


# RoIAlign.

STRIDES = (4, 8, 16)


@pytest.fixture
def pyramid(rng):
    shapes = ((16, 12), (8, 6), (4, 3))
    return [rng.normal(size=(*shape, 3)).astype(np.float32) for shape in shapes]


def rois_of_all_kinds(rng):
    some = draw_boxes(rng, 12, 48.0)
    # The whole image; smaller than a cell; at an edge; beyond it; idle.
    whole, tiny, edge = [0, 0, 48, 64], [9, 9, 9.5, 9.25], [40, 50, 48, 64]
    others = [whole, tiny, edge, [44, 60, 60, 90], [0, 0, 0, 0]]
    return np.concatenate([some, np.array(others, np.float32)])


def test_features_of_boxes_are_those_of_the_reference(rng, pyramid):
    rois = rois_of_all_kinds(rng)
    level = assign_levels(jnp.asarray(rois), STRIDES, 32.0)
    expected = [reference.level(roi, 2, 4, 32.0) - 2 for roi in rois[:-1]]
    np.testing.assert_array_equal(level[:-1], expected)
    assert set(expected) == {0, 1, 2}
    found = roi_align(
        [jnp.asarray(f) for f in pyramid], STRIDES, jnp.asarray(rois), level, 7
    )
    for number, roi in enumerate(rois):
        where = int(level[number])
        own = reference.roi_align(pyramid[where], roi, 1 / STRIDES[where], 7, SAMPLES)
        np.testing.assert_allclose(found[number], own, atol=1e-5)
    moved = reference.roi_align(
        pyramid[int(level[0])], rois[0] + 2, 1 / STRIDES[int(level[0])], 7, SAMPLES
    )
    assert np.abs(np.asarray(found[0]) - moved).max() > 0.01
    # Levels change at the sizes of the paper.
    sides = [1, 111, 112, 223.9, 224, 447, 448, 2000]
    rois = jnp.array([[0.0, 0, side, side] for side in sides])
    found = assign_levels(rois, (4, 8, 16, 32), 224.0)
    np.testing.assert_array_equal(found, [0, 0, 1, 1, 2, 2, 3, 3])


@pytest.mark.usefixtures("x64")
def test_gradients_of_roi_align_are_finite_differences(rng, pyramid):
    pyramid = [jnp.asarray(feature, jnp.float64) for feature in pyramid]
    rois = jnp.asarray(rois_of_all_kinds(rng)[8:], jnp.float64)
    level = assign_levels(rois, STRIDES, 32.0)
    weights = jnp.asarray(rng.normal(size=(len(rois), 2, 2, 3)))

    @jax.jit
    def value(pyramid):
        return jnp.sum(jnp.sin(roi_align(pyramid, STRIDES, rois, level, 2)) * weights)

    grads = jax.grad(value)(pyramid)
    step = 1e-5
    for seed in range(3):
        draw = np.random.default_rng(seed)
        way = [jnp.asarray(draw.normal(size=f.shape)) for f in pyramid]
        ahead = value([f + step * w for f, w in zip(pyramid, way, strict=True)])
        behind = value([f - step * w for f, w in zip(pyramid, way, strict=True)])
        slope = sum(jnp.sum(g * w) for g, w in zip(grads, way, strict=True))
        difference = (ahead - behind) / (2 * step)
        np.testing.assert_allclose(slope, difference, rtol=1e-7)
        assert abs(slope) > 0.1
    assert all(np.abs(np.asarray(g)).max() > 0 for g in grads)


# Masks.


def blob(rng, height, width):
    y, x = np.mgrid[:height, :width]
    center, radius = rng.uniform(20, 40, 2), rng.uniform(8, 14, 2)
    inside = ((y - center[0]) / radius[0]) ** 2 + ((x - center[1]) / radius[1]) ** 2
    return inside < 1


def box_around(mask):
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    edges = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    return np.array(edges, np.float32)


def test_a_crop_has_the_share_of_each_cell():
    mask = np.zeros((6, 8), bool)
    mask[2:4, 3:6] = True
    np.testing.assert_array_equal(masks.crop(mask, np.array([3, 2, 6, 4]), 5), 255)
    half = masks.crop(mask, np.array([2, 1, 4, 3]), 2)
    np.testing.assert_array_equal(half, [[0, 0], [0, 255]])
    quarter = masks.crop(mask, np.array([2, 1, 4, 3]), 1)
    np.testing.assert_array_equal(quarter, [[64]])


def test_targets_of_the_mask_head_are_those_of_whole_masks(rng):
    # With a cell for each pixel of its box, a crop has all that the mask has.
    for _ in range(3):
        mask = blob(rng, 64, 64)
        left, top, right, bottom = box_around(mask).astype(int)
        side = max(right - left, bottom - top)
        box = np.array([left, top, left + side, top + side], np.float32)
        crop = masks.crop(mask, box, side) / np.float32(255)
        near = (box + rng.uniform(-4, 4, 4)).astype(np.float32)
        arguments = [jnp.asarray(a)[None] for a in (crop, box, near)]
        found = masks.project(*arguments, 14)[0]
        whole = mask.astype(float)
        expected = reference.roi_align(whole, near, 1.0, 14, SAMPLES)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert 0.2 < expected.mean() < 0.9
        # As torchvision samples, by the size of the box: 2 x 2 here as well.
        own = reference.roi_align(whole, near, 1.0, 14, None)
        assert np.abs(own - expected).mean() < 0.02
        moved = reference.roi_align(whole, near + 1, 1.0, 14, SAMPLES)
        assert np.abs(moved - expected).max() > 0.2
        again = masks.paste(masks.crop(mask, box, 28) / 255, box, 64, 64)
        assert (again & mask).sum() / (again | mask).sum() > 0.85


@pytest.mark.parametrize(
    "box",
    [
        [10.2, 5.7, 30.9, 44.1],
        [-6.3, -4.0, 12.0, 20.5],  # beyond the image on two sides
        [30, 25, 70.5, 60],
        [20.2, 20.3, 20.6, 20.9],  # smaller than a pixel
    ],
)
def test_masks_are_pasted_as_by_the_reference(rng, box):
    grid = rng.random((28, 28)).astype(np.float32)
    box = np.array(box, np.float32)
    expected = reference.paste(grid, box, 50, 60)
    unclear = np.abs(expected - 0.5) < 1e-4
    assert unclear.mean() < 0.01
    found = masks.paste(grid, box, 50, 60)
    np.testing.assert_array_equal(found[~unclear], (expected > 0.5)[~unclear])
    assert found.any() or box[2] - box[0] < 1
    if found.any():
        assert not np.array_equal(found, masks.paste(grid, box + 3, 50, 60))
