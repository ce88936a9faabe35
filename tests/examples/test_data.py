"""The examples' batches, and what they do to images."""

import gc
import itertools
import threading
import time

import numpy as np
import pytest
from PIL import Image

from examples.shared import images
from examples.shared.data import Arrays, eval_batches, subset, train_batches


def numbered(count):
    """A split whose images tell their number and whose labels are it."""
    pixels = np.arange(count, dtype=np.uint8)[:, None, None, None]
    return Arrays(np.broadcast_to(pixels, (count, 2, 3, 1)), np.arange(count))


def add_noise(example, rng):
    noise = rng.random(example["image"].shape)
    return {"image": example["image"] + noise, "label": example["label"]}


def take(count, **options):
    settings = {"batch_size": 4, "seed": 3, "threads": 1} | options
    batches = train_batches(numbered(10), add_noise, **settings)
    return list(itertools.islice(batches, count))


def equal(one, other):
    return all(np.array_equal(one[key], other[key]) for key in ("image", "label"))


# Batches for training. Ten examples in fours: an epoch ends inside of a batch.


@pytest.mark.parametrize(("first_step", "threads"), [(1, 1), (7, 3), (11, 1)])
def test_a_run_resumes_where_it_stopped(first_step, threads):
    whole = take(16)
    resumed = take(16 - first_step, first_step=first_step, threads=threads)
    for one, other in zip(whole[first_step:], resumed, strict=True):
        assert one["image"].dtype == np.float32
        assert one["label"].dtype == np.int32
        assert equal(one, other)
    assert not any(map(equal, whole, resumed))


def test_another_seed_gives_other_batches():
    same, other = take(5), take(5, seed=4)
    assert all(map(equal, take(5), same))
    assert not any(map(equal, same, other))
    # The order differs, not the noise alone.
    assert any((a["label"] != b["label"]).any() for a, b in zip(same, other))  # noqa: B905


def test_each_epoch_has_each_example_once_in_a_new_order_and_augmented_anew():
    batches = take(10)
    pixels, labels = (
        np.concatenate([batch[key] for batch in batches]) for key in ("image", "label")
    )
    epochs = labels.reshape(4, 10)
    for epoch in epochs:
        assert sorted(epoch) == list(range(10))
    assert len({tuple(epoch) for epoch in epochs}) == 4
    np.testing.assert_array_equal(pixels.astype(int)[:, 0, 0, 0], labels)
    assert len(np.unique(pixels[labels == 5], axis=0)) == 4


def test_a_batch_may_be_larger_than_the_split():
    (batch,) = take(1, batch_size=25)
    counts = np.bincount(batch["label"])
    assert counts.sum() == 25
    assert set(counts) == {2, 3}


def test_a_split_without_examples_gives_no_batches():
    with pytest.raises(ValueError, match="No batches of 4 from 0 examples"):
        train_batches(numbered(0), add_noise, batch_size=4, seed=0)


class Broken:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        raise ValueError("some.jpg cannot be decoded")


@pytest.mark.parametrize("threads", [1, 2])
def test_errors_of_reading_reach_the_caller(threads):
    options = {"batch_size": 2, "threads": threads}
    with pytest.raises(ValueError, match=r"some\.jpg cannot be decoded"):
        next(train_batches(Broken(), add_noise, seed=0, **options))
    with pytest.raises(ValueError, match=r"some\.jpg cannot be decoded"):
        next(eval_batches(Broken(), dict, **options))


def readers():
    return [t for t in threading.enumerate() if t.name.startswith("grain-prefetch")]


@pytest.mark.parametrize("closed", [True, False])
def test_threads_end_with_the_iterator(closed):
    gc.collect()
    before = set(readers())
    batches = train_batches(numbered(10), add_noise, batch_size=4, seed=0)
    next(batches)
    threads = set(readers()) - before
    assert threads
    if closed:
        batches.close()  # pyright: ignore[reportAttributeAccessIssue]
    else:
        del batches
        gc.collect()
    deadline = time.monotonic() + 10
    while any(thread.is_alive() for thread in threads):
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Batches for evaluation.


@pytest.mark.parametrize("count", [7, 8, 9])
def test_evaluation_has_each_example_once_and_batches_of_one_shape(count):
    batches = list(eval_batches(numbered(count), dict, batch_size=4))
    assert len(batches) == -(-count // 4)
    assert {batch["image"].shape for batch in batches} == {(4, 2, 3, 1)}
    labels = np.concatenate([batch["label"] for batch in batches])
    pixels = np.concatenate([batch["image"] for batch in batches])
    filling = len(labels) - count
    np.testing.assert_array_equal(labels, [*range(count), *[-1] * filling])
    np.testing.assert_array_equal(pixels[:, 1, 2, 0], [*range(count), *[0] * filling])


def test_masks_are_filled_up_too():
    split = Arrays(np.ones((3, 2, 2, 1), np.uint8), np.ones((3, 2, 2), np.int32))
    _, last = eval_batches(split, dict, batch_size=2)
    np.testing.assert_array_equal(last["label"], [np.ones((2, 2)), -np.ones((2, 2))])
    assert last["label"].dtype == np.int32


def test_a_subset_is_always_the_same_part():
    def labels(count):
        split = subset(numbered(20), count)
        return [split[index]["label"] for index in range(len(split))]

    assert len(set(labels(8))) == 8
    assert labels(8) == labels(8) == labels(12)[:8] != list(range(8))
    assert labels(None) == list(range(20))
    for count in (0, 21):
        with pytest.raises(ValueError, match=f"Asked for {count} examples of the 20"):
            subset(numbered(20), count)


# Images.


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def picture(rng):
    return rng.integers(0, 256, size=(40, 60, 3), dtype=np.uint8)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "RGB"])
def test_images_of_any_kind_are_read_as_rgb(tmp_path, picture, mode):
    path = tmp_path / "image.png"
    image = Image.fromarray(picture).convert(mode)
    image.save(path)
    expected = np.asarray(image.convert("RGB"))
    read = images.decode(path)
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, expected)
    assert not np.array_equal(read, expected[::-1])


def test_windows_have_the_areas_and_proportions_asked_for(rng):
    windows = np.array([images.random_window(400, 500, rng) for _ in range(6000)])
    top, left, height, width = windows.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 400).all()
    assert (left + width <= 500).all()
    share, ratio = height * width / 200_000, width / height
    assert 0.079 < share.min() < 0.09
    assert 0.9 < share.max() <= 1
    assert 0.74 < ratio.min() < 0.76
    assert 1.31 < ratio.max() < 1.35
    # The logarithm of the ratio is uniform, but for what does not fit.
    small = np.log(ratio[share < 0.5]) / np.log(4 / 3)
    np.testing.assert_allclose(
        np.quantile(small, [0.25, 0.5, 0.75]), [-0.5, 0, 0.5], atol=0.06
    )
    assert len(np.unique(top)) > 100
    assert len(np.unique(left)) > 100


def test_where_no_window_fits_it_is_the_middle(rng):
    for shape, window in (
        ((10, 1000), (0, 493, 10, 13)),
        ((1000, 12), (492, 0, 16, 12)),
    ):
        for _ in range(5):
            assert images.random_window(*shape, rng) == window
    # An area of twice the image never fits.
    assert images.random_window(30, 32, rng, scale=(2, 2)) == (0, 0, 30, 32)


def test_a_resized_crop_is_the_scaled_window(picture):
    crop = images.random_resized_crop(picture, 24, np.random.default_rng(5))
    window = images.random_window(40, 60, np.random.default_rng(5))
    top, left, height, width = window
    assert window != images.random_window(40, 60, np.random.default_rng(6))
    box = (left, top, left + width, top + height)
    expected = Image.fromarray(picture).crop(box).resize((24, 24), images.BILINEAR)
    np.testing.assert_array_equal(crop, np.asarray(expected))
    other = images.random_resized_crop(picture, 24, np.random.default_rng(6))
    assert not np.array_equal(crop, other)


def test_the_shorter_side_gets_the_size_and_the_middle_is_cut_out():
    for shape, scaled in (((40, 60), (20, 30)), ((63, 42), (30, 20))):
        image = np.zeros((*shape, 3), np.uint8)
        assert images.resize_short_side(image, 20).shape == (*scaled, 3)
    place = np.arange(8 * 10).reshape(8, 10, 1)
    np.testing.assert_array_equal(images.center_crop(place, 4), place[2:6, 3:7])


def test_half_of_the_images_are_flipped(rng):
    image = np.arange(12).reshape(2, 3, 2)
    flipped = [images.random_flip(image, rng) for _ in range(400)]
    mirrored = sum(np.array_equal(one, image[:, ::-1]) for one in flipped)
    assert mirrored + sum(np.array_equal(one, image) for one in flipped) == 400
    assert 160 < mirrored < 240


@pytest.mark.parametrize(
    ("move", "mode"), [(images.random_crop, "constant"), (images.random_shift, "edge")]
)
def test_images_move_by_up_to_the_pixels_asked_for(rng, move, mode):
    image = np.arange(1, 31, dtype=np.uint8).reshape(5, 6, 1)
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)), mode=mode)
    possible = {
        padded[top : top + 5, left : left + 6].tobytes()
        for top in range(5)
        for left in range(5)
    }
    moved = {move(image, 2, rng).tobytes() for _ in range(500)}
    assert moved == possible
    assert len(moved) == 25


def test_normalized_images_have_no_mean_and_unit_deviation(picture):
    mean, std = (
        statistic(picture, axis=(0, 1)).astype(np.float32)
        for statistic in (np.mean, np.std)
    )
    result = images.normalize(picture, mean, std)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result.mean((0, 1)), 0, atol=1e-5)
    np.testing.assert_allclose(result.std((0, 1)), 1, atol=1e-5)
