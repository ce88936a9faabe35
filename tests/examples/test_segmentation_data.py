"""COCO for segmentation: its format, written and read."""

import sys

import numpy as np
import pytest
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from examples.segmentation import coco, input_pipeline
from examples.shared.coco_format import rasterize
from examples.shared.data import eval_batches, train_batches
from examples.shared.scenes import Scenes, write_coco
from tests.examples.coco_files import annotation, picture, square, write_split

# pycocotools 2.0 under NumPy 2.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
)

ALL_DIGITS = tuple(range(11))  # categories of scenes: the background, 1 to 10


# COCO's format.


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder of COCO's layout with scenes; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("coco")
    write_coco(Scenes("train", 6, size=96), folder, "train2017")
    write_coco(Scenes("test", 4, size=96), folder, "val2017")
    return folder


@pytest.mark.usefixtures("capsys")
def test_written_scenes_are_read_as_they_were_by_us_and_by_pycocotools(written):
    api = COCO(written / "annotations" / "instances_val2017.json")
    split = coco.CocoMasks(written, "val2017", ALL_DIGITS)
    scenes = Scenes("test", 4, size=96)
    assert sorted(api.imgs) == [1, 2, 3, 4]
    assert [c["name"] for c in api.cats.values()] == list("0123456789")
    for number in range(4):
        scene, made, read = scenes.scene(number), scenes[number], split[number]
        np.testing.assert_array_equal(read["label"], made["label"])
        assert not np.array_equal(read["label"], scenes[(number + 1) % 4]["label"])
        difference = np.abs(read["image"].astype(int) - made["image"]).mean()
        assert difference < 8  # JPEG
        for entry, mask, digit in zip(
            api.imgToAnns[number + 1], scene.masks, scene.digits, strict=True
        ):
            assert entry["category_id"] == digit + 1
            np.testing.assert_array_equal(api.annToMask(entry), mask)
            encoded = api.annToRLE(entry)
            assert entry["area"] == coco_mask.area(encoded)
            assert entry["bbox"] == coco_mask.toBbox(encoded).tolist()


def test_categories_become_vocs_classes(written):
    voc = coco.CocoMasks(written, "train2017")
    every = coco.CocoMasks(written, "train2017", ALL_DIGITS)
    classes = {1: 15, 2: 2, 3: 7, 4: 14, 5: 1, 6: 6, 7: 19, 9: 4}
    table = np.array([classes.get(category, 0) for category in ALL_DIGITS])
    for number in range(6):
        expected = table[every[number]["label"]]
        np.testing.assert_array_equal(voc[number]["label"], expected)
    assert not np.array_equal(voc[0]["label"], every[0]["label"])
    assert len(coco.VOC_CATEGORIES) == 21


def test_coco_is_loaded_as_a_data_set(written):
    data = input_pipeline.load("coco", written, image_size=48)
    assert (data.classes, data.shape, len(data.test)) == (21, (48, 48, 3), 4)
    batch = next(train_batches(data.train, data.augment, batch_size=3, seed=0))
    assert batch["image"].shape == (3, 48, 48, 3)
    assert batch["label"].shape == (3, 48, 48)
    (batch,) = eval_batches(data.test, data.prepare, batch_size=4)
    assert batch["image"].shape == (4, 80, 80, 3)
    usual = input_pipeline.load("coco", written, train_examples=1, test_examples=2)
    assert (len(usual.train), len(usual.test)) == (1, 2)
    assert usual.shape == (480, 480, 3)


# Annotations made by hand: an image 60 wide and 50 high.


@pytest.fixture
def make_split(tmp_path):
    """Writes annotations and gray images in COCO's layout and opens them."""

    def make(annotations, pictures=None, **options):
        write_split(tmp_path, annotations, pictures)
        return coco.CocoMasks(tmp_path, "val2017", **options)

    return make


def test_pixels_of_two_instances_are_ignored(make_split):
    split = make_split([annotation((0, 0, 20, 20)), annotation((10, 0, 20, 20), 5)])
    label = split[0]["label"]
    assert (label[:20, :10] == 15).all()
    assert (label[:20, 10:20] == -1).all()
    assert (label[:20, 20:30] == 1).all()
    assert (label[20:] == 0).all()


def test_images_with_little_to_learn_are_left_out(make_split):
    pictures = [picture(key) for key in range(1, 5)]
    annotations = [
        annotation((0, 0, 10, 10), image=1),
        annotation((0, 0, 40, 40), image=2, crowd=1),
        annotation((0, 0, 40, 40), 90, image=3),
        annotation((0, 0, 25, 25), image=4),
        annotation((30, 0, 25, 25), 5, image=4),
    ]
    split = make_split(annotations, pictures, minimum_area=coco.MINIMUM_AREA)
    assert len(split) == 2
    assert set(np.unique(split[0]["label"])) == {0, 15}  # the crowd
    assert set(np.unique(split[1]["label"])) == {0, 1, 15}
    assert len(make_split(annotations, pictures)) == 4
    with pytest.raises(ValueError, match="leaves no image with more than 9999"):
        make_split(annotations, pictures, minimum_area=9999)


def white_disc(height, width):
    """An image that is white where its label is 1."""
    y, x = np.mgrid[:height, :width]
    disc = np.hypot(y - 0.3 * height, x - 0.7 * width) < 0.25 * min(height, width)
    image = np.repeat(255 * disc[..., None], 3, -1).astype(np.uint8)
    return {"image": image, "label": disc.astype(np.int32)}


def test_augmentation_keeps_images_and_masks_together(written):
    augment = coco.load(written, 48).augment  # base 52, evaluated at 80
    example = white_disc(90, 120)
    shares, sides, padded = [], [], 0
    for seed in range(60):
        result = augment(example, np.random.default_rng(seed))
        image, label = result["image"], result["label"]
        assert image.shape == (48, 48, 3)
        assert label.shape == (48, 48)
        white = image[..., 0] > 0.1  # half of the way from black to white
        known = label >= 0
        assert (white == (label == 1))[known].mean() > 0.96
        assert (image[~known] == 0).all()
        padded += bool((~known).any())
        shares.append((label == 1).mean())
        if (label == 1).any():
            sides.append(np.nonzero(label == 1)[1].mean() < 24)
    assert 5 < padded < 55
    assert max(shares) > 4 * min(shares)
    assert 5 < sum(sides) < len(sides) - 5  # some are flipped


@pytest.mark.parametrize(
    ("shape", "scaled"), [((100, 150), (52, 78)), ((100, 300), (27, 80))]
)
def test_evaluation_scales_and_fills_up_to_a_square(written, shape, scaled):
    result = coco.load(written, 48).prepare(white_disc(*shape))
    assert result["image"].shape == (80, 80, 3)
    known = result["label"] >= 0
    assert known[: scaled[0], : scaled[1]].all()
    assert known.sum() == np.prod(scaled)
    assert (result["image"][~known] == 0).all()
    agree = (result["image"][..., 0] > 0.1) == (result["label"] == 1)
    assert agree[known].mean() > 0.96


# Errors, besides those in the table of hostile files.


def test_what_is_missing_is_named(make_split, tmp_path, monkeypatch):
    assert make_split([annotation((0, 0, 20, 20))])[0]["image"].shape == (50, 60, 3)

    def refused(message, read, *arguments):
        with pytest.raises(FileNotFoundError, match=message):
            read(*arguments)

    path = tmp_path / "val2017" / "000000000007.jpg"
    path.unlink()
    refused(r"7\.jpg is missing, which .*json", coco.CocoMasks, tmp_path, "val2017")
    path.parent.rmdir()
    refused("val2017 is missing: unpack COCO", coco.CocoMasks, tmp_path, "val2017")
    refused(
        r"train2017\.json is missing: unpack", input_pipeline.load, "coco", tmp_path
    )
    refused("COCO needs the folder", input_pipeline.load, "coco")
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    with pytest.raises(ImportError, match="pip install pycocotools"):
        rasterize(square(0, 0, 20), 50, 60)
