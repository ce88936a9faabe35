"""The scenes of digits."""

import numpy as np
import pytest

from examples.shared import digits
from examples.shared.scenes import Scenes


def same(one, other):
    return all(np.array_equal(one[key], other[key]) for key in ("image", "label"))


def test_a_scene_depends_on_seed_split_and_number_alone():
    scenes = Scenes("train", 10, seed=1)
    fourth = scenes[4]
    for other in (Scenes("train", 5, seed=1), scenes):
        assert same(other[4], fourth)
    for other in (scenes[5], Scenes("train", 10)[4], Scenes("test", 10, seed=1)[4]):
        assert not same(other, fourth)


@pytest.mark.parametrize("size", [32, 96])
def test_scenes_have_two_to_six_digits_and_their_masks(size):
    scenes = Scenes("test", 40, size=size)
    counts, classes = set(), set()
    for number in range(len(scenes)):
        example, scene = scenes[number], scenes.scene(number)
        assert example["image"].shape == (size, size, 3)
        assert example["image"].dtype == np.uint8
        assert example["label"].shape == (size, size)
        np.testing.assert_array_equal(
            example["label"] > 0, scene.masks.sum(axis=0) == 1
        )
        assert scene.masks.sum(axis=0).max() == 1
        assert scene.masks.any(axis=(1, 2)).all()
        for mask, digit in zip(scene.masks, scene.digits, strict=True):
            assert set(example["label"][mask]) == {digit + 1}
        counts.add(len(scene.digits))
        classes |= set(np.unique(example["label"]))
    assert max(counts) == 6
    assert min(counts) <= 2
    assert classes == set(range(11))


def test_scenes_outside_of_the_limits_are_refused():
    for size in (31, 97):
        with pytest.raises(ValueError, match=f"from 32 to 96, not {size}"):
            Scenes("train", 1, size=size)
    with pytest.raises(IndexError, match="No scene 3 among 3"):
        Scenes("train", 3)[3]


def test_splits_show_digits_of_their_own(monkeypatch):
    data = digits.load()
    threes, sevens = data.train_labels == 3, data.test_labels == 7
    own = data.train_images[threes], data.train_labels[threes]
    other = data.test_images[sevens], data.test_labels[sevens]
    monkeypatch.setattr(digits, "load", lambda: digits.Digits(*own, *other))
    for split, digit in (("train", 3), ("test", 7)):
        found = [Scenes(split, 5).scene(i).digits for i in range(5)]
        assert set(np.concatenate(found)) == {digit}
