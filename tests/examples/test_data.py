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


class Broken:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        raise ValueError("some.jpg cannot be decoded")


def test_errors_of_reading_reach_the_caller():
    with pytest.raises(ValueError, match=r"some\.jpg cannot be decoded"):
        next(train_batches(Broken(), add_noise, batch_size=2, seed=0, threads=2))
    with pytest.raises(ValueError, match=r"some\.jpg cannot be decoded"):
        next(eval_batches(Broken(), dict, batch_size=2, threads=2))
    with pytest.raises(ValueError, match="No batches of 4 from 0 examples"):
        train_batches(numbered(0), add_noise, batch_size=4, seed=0)


def readers():
    return {t for t in threading.enumerate() if t.name.startswith("grain-prefetch")}


@pytest.mark.parametrize("closed", [True, False])
def test_threads_end_with_the_iterator(closed):
    gc.collect()
    before = readers()
    batches = train_batches(numbered(10), add_noise, batch_size=4, seed=0)
    next(batches)
    threads = readers() - before
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
    assert {batch["image"].shape for batch in batches} == {(4, 2, 3, 1)}
    labels = np.concatenate([batch["label"] for batch in batches])
    pixels = np.concatenate([batch["image"] for batch in batches])
    filling = -count % 4
    np.testing.assert_array_equal(labels, [*range(count), *[-1] * filling])
    np.testing.assert_array_equal(pixels[:, 1, 2, 0], [*range(count), *[0] * filling])


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
    np.testing.assert_array_equal(images.decode(path), expected)
    assert not np.array_equal(images.decode(path), expected[::-1])


def test_a_resized_crop_is_a_scaled_window_of_the_areas_asked_for(rng, picture):
    windows = np.array([images.random_window(400, 500, rng) for _ in range(3000)])
    top, left, height, width = windows.T
    assert (windows[:, :2] >= 0).all()
    assert (top + height <= 400).all()
    assert (left + width <= 500).all()
    share, ratio = height * width / 200_000, width / height
    assert 0.079 < share.min() < 0.1 < 0.9 < share.max() <= 1
    assert 0.74 < ratio.min() < 0.77 < 1.3 < ratio.max() < 1.35
    assert images.random_window(10, 1000, rng) == (0, 493, 10, 13)  # none fits
    crop = images.random_resized_crop(picture, 24, np.random.default_rng(5))
    top, left, height, width = images.random_window(40, 60, np.random.default_rng(5))
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
