"""Data for detection: COCO's format read, changed for training, and scored."""

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from examples.detection import coco, input_pipeline, masks, scoring
from examples.shared.data import eval_batches, subset, train_batches
from examples.shared.scenes import Scenes, bounding_box, write_coco
from tests.examples.coco_files import (
    HEIGHT,
    WIDTH,
    annotation,
    picture,
    square,
    write_split,
)

# pycocotools 2.0 under NumPy 2.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
)


# Annotations made by hand: images 60 wide and 50 high.


@pytest.fixture
def make_split(tmp_path):
    """Writes annotations and gray images in COCO's layout and opens them."""

    def make(annotations, pictures=None, train=True, **options):
        write_split(tmp_path, annotations, pictures)
        return coco.CocoInstances(tmp_path, "val2017", train=train, **options)

    return make


def test_polygons_and_both_kinds_of_rle_become_crops(make_split):
    mask = np.zeros((HEIGHT, WIDTH), np.uint8, order="F")
    mask[30:40, 5:15] = 1
    mask[30:35, 5:10] = 0
    compressed = coco_mask.encode(mask)
    compressed["counts"] = compressed["counts"].decode()
    runs = {"size": [HEIGHT, WIDTH], "counts": [0, HEIGHT * WIDTH]}
    split = make_split(
        [
            annotation((5, 30, 10, 10), 3, segmentation=compressed),
            annotation((4, 6, 12, 12), 90, segmentation=square(4, 6, 6)),
            annotation((0, 0, 60, 50), 1, segmentation=runs),
        ],
        cells=4,
    )
    example = split[0]
    quarter = np.array([[1, 1, 0, 0]] * 2 + [[0] * 4] * 2)
    np.testing.assert_array_equal(example["label"], [3, 90, 1])
    np.testing.assert_array_equal(example["boxes"][0], [5, 30, 15, 40])
    np.testing.assert_array_equal(example["boxes"][2], [0, 0, 60, 50])
    np.testing.assert_array_equal(example["masks"][1], 255 * quarter)
    assert (example["masks"][0][:2, :2] == 0).all()
    assert example["masks"][0].sum() == 255 * 12
    assert (example["masks"][2] == 255).all()
    assert example["number"] == 1


def test_images_without_boxes_are_tested_but_not_trained_on(make_split):
    pictures = [picture(key) for key in (7, 8, 9, 10)]
    annotations = [
        annotation((5, 5, 20, 20), image=8),
        annotation((5, 5, 20, 20), image=9, crowd=1),
        annotation((5, 5, 0.5, 20), image=10),
    ]
    split = make_split(annotations, pictures)
    assert len(split) == split.counts["crowds"] == 1
    every = make_split(annotations, pictures, train=False)
    assert len(every) == 4
    assert set(every[0]) == {"image", "number"}
    assert [every.key(number) for number in (1, 2, 3, 4)] == [7, 8, 9, 10]
    with pytest.raises(ValueError, match=r"val2017\.json leaves no image with boxes"):
        make_split(annotations[1:], pictures)


def test_boxes_are_clipped_or_left_out_and_counted(make_split):
    inside = square(10, 10, 5)
    boxes = [
        (5, 5, 20, 20),
        (50, 40, 20.5, 20),  # beyond two edges
        (-3, 5, 10, 10),
        (70, 5, 10, 10),  # outside
        (20, 20, 0, 10),  # without width
        (20, 20, 10, 30.0005),  # by less than a thousandth
    ]
    split = make_split([annotation(box, segmentation=inside) for box in boxes])
    expected = [[5, 5, 25, 25], [50, 40, 60, 50], [0, 5, 7, 15], [20, 20, 30, 50]]
    np.testing.assert_array_equal(split[0]["boxes"], expected)
    assert split.counts == {"clipped": 2, "degenerate": 2}
    assert "2 boxes clipped to their image, 2 without width" in split.describe()
    assert split.most == 4


@pytest.mark.parametrize("category", [91, 0, -1])
def test_unknown_categories_are_refused(make_split, category):
    assert len(make_split([annotation((5, 5, 9, 9), 90)])) == 1
    message = (
        rf"val2017\.json: annotation 31: category_id is {category}, but .* 1 to 90"
    )
    with pytest.raises(ValueError, match=message):
        make_split([annotation((5, 5, 9, 9), category)])


def test_annotations_are_checked(make_split):
    """One of each reader; all others are in the table of hostile files."""
    bare = annotation((5, 5, 9, 9))
    del bare["bbox"]
    with pytest.raises(ValueError, match=r"2017\.json: annotation 31: .*key 'bbox'"):
        make_split([bare])
    split = make_split([annotation((5, 5, 9, 9), segmentation="text")])
    message = r"val2017\.json has a segmentation of image 7 .*annotation 31"
    for read in (lambda: split[0], lambda: split.truth([0])):
        with pytest.raises(ValueError, match=message):
            read()


# Changes for training.


def test_flipping_moves_boxes_and_masks_with_the_image(make_split):
    triangle = [[10, 10, 30, 10, 10, 30]]
    split = make_split([annotation((10, 10, 20, 20), segmentation=triangle)], cells=8)
    example = split[0]
    example["image"] = np.arange(HEIGHT * WIDTH * 3).reshape(HEIGHT, WIDTH, 3)
    flipped = coco.flip(example)
    np.testing.assert_array_equal(flipped["boxes"], [[30, 10, 50, 30]])
    np.testing.assert_array_equal(flipped["image"], example["image"][:, ::-1])
    np.testing.assert_array_equal(flipped["masks"][0], example["masks"][0][:, ::-1])
    assert not np.array_equal(flipped["masks"], example["masks"])
    again = coco.flip(flipped)
    for key, value in example.items():
        np.testing.assert_array_equal(again[key], value)


@pytest.mark.parametrize(
    ("shape", "scaled"),
    [((50, 50), (60, 60)), ((50, 75), (60, 90)), ((25, 100), (24, 96))],
)
def test_images_are_scaled_and_padded_with_their_boxes(shape, scaled):
    y, x = np.mgrid[: shape[0], : shape[1]]
    inside = (y >= 10) & (y < 20) & (x >= 5) & (x < 25)
    image = np.repeat(255 * inside[..., None], 3, -1).astype(np.uint8)
    example = {"image": image, "boxes": np.array([[5, 10, 25, 20]], np.float32)}
    mean, std = np.zeros(3), np.full(3, 255)
    result = coco.fit(example, 60, 96, mean, std)
    assert result["image"].shape == (96, 96, 3)
    assert result["size"].tolist() == list(scaled)
    assert (result["image"][scaled[0] :] == 0).all()
    assert (result["image"][:, scaled[1] :] == 0).all()
    left, top, width, height = bounding_box(result["image"][..., 0] > 0.5)
    found = [left, top, left + width, top + height]
    np.testing.assert_allclose(result["boxes"][0], found, atol=1)
    assert np.abs(result["boxes"][0] - example["boxes"][0]).max() > 0.1


# Scenes.


@pytest.fixture(scope="module")
def data():
    sizes = {"image_size": 48, "train_examples": 6, "test_examples": 5}
    return input_pipeline.load("scenes", **sizes)


def test_scenes_are_read_through_cocos_format(data):
    made = Scenes("train", 6, size=48)
    for number in range(6):
        scene, example = made.scene(number), data.train[number]
        np.testing.assert_array_equal(example["label"], scene.digits + 1)
        for mask, box, crop in zip(
            scene.masks, example["boxes"], example["masks"], strict=True
        ):
            left, top, width, height = bounding_box(mask)
            assert box.tolist() == [left, top, left + width, top + height]
            again = masks.paste(crop / 255, box, 48, 48)
            assert (again & mask).sum() >= 0.5 * (again | mask).sum()
    assert (data.classes, data.shape) == (11, (48, 48, 3))


def test_batches_have_one_shape(data):
    most = data.train.most
    batch = next(train_batches(data.train, data.augment, batch_size=4, seed=0))
    assert batch["image"].shape == (4, 48, 48, 3)
    assert batch["boxes"].shape == (4, most, 4)
    assert batch["masks"].shape == (4, most, 28, 28)
    idle = batch["label"] == -1
    assert idle.any()
    assert (batch["boxes"][idle] == 0).all()
    assert (batch["boxes"][~idle][:, 2:] > batch["boxes"][~idle][:, :2]).all()
    first, last = eval_batches(data.test, data.prepare, batch_size=4)
    assert first["number"].tolist() == [1, 2, 3, 4]
    assert last["number"].tolist() == [5, 0, 0, 0]
    assert last["size"].tolist() == [[48, 48]] + [[0, 0]] * 3


def test_a_folder_of_coco_is_loaded(tmp_path, capsys):
    for split, name in (("train", "train2017"), ("test", "val2017")):
        write_coco(Scenes(split, 3, size=64), tmp_path, name)
    data = input_pipeline.load("coco", tmp_path, image_size=96, test_examples=2)
    assert "3 images, at most" in capsys.readouterr().out
    assert (data.classes, data.shape, len(data.test)) == (91, (96, 96, 3), 2)
    with pytest.raises(FileNotFoundError, match="COCO needs the folder"):
        input_pipeline.load("coco")
    with pytest.raises(ValueError, match="scenes and coco, got 'voc'"):
        input_pipeline.load("voc")


# Scores.


def perfect(split, truth):
    """The truth as detections."""
    return [
        {key: entry[key] for key in ("image_id", "category_id", "bbox", "segmentation")}
        | {"score": 0.9}
        for entry in truth["annotations"]
        if not entry["iscrowd"]
    ]


def shifted(entry, pixels):
    mask = np.roll(coco_mask.decode(entry["segmentation"]), pixels, axis=1)
    left, top, width, height = entry["bbox"]
    box = [left + pixels, top, width, height]
    return {**entry, "bbox": box, "segmentation": masks.encode(mask)}


def test_the_truth_has_an_average_precision_of_1(data):
    split, truth = scoring.truth_of(data.test)
    results = perfect(split, truth)
    assert len(results) > 5
    found = scoring.score(truth, results, with_masks=True)
    assert set(found) == {"bbox_ap", "bbox_ap50", "segm_ap", "segm_ap50"}
    assert list(found.values()) == pytest.approx([1, 1, 1, 1])
    near, far = ([shifted(entry, by) for entry in results] for by in (1, 9))
    one, other = (scoring.score(truth, r, with_masks=True) for r in (near, far))
    assert other["bbox_ap"] < 0.2 < 0.3 < one["bbox_ap"] < 0.95
    assert one["segm_ap"] < one["bbox_ap"]  # thin strokes
    boxes = scoring.score(truth, [], with_masks=False)
    assert boxes == {"bbox_ap": 0, "bbox_ap50": 0}
    part, fewer = scoring.truth_of(subset(data.test, 2))  # a part is scored alone
    assert (len(fewer["images"]), len(part)) == (2, 5)
    assert len(fewer["annotations"]) < len(truth["annotations"])


def test_what_is_in_a_crowd_is_neither_right_nor_wrong(make_split):
    entries = [annotation((5, 5, 20, 20)), annotation((30, 0, 30, 50), crowd=1)]
    split = make_split(entries, train=False)
    truth = split.truth([0])
    results = perfect(split, truth)
    inside = {**shifted(results[0], 28), "score": 0.95}
    outside = {**shifted(results[0], 8), "score": 0.95}

    def precision(*more):
        found = scoring.score(truth, [*results, *more], with_masks=False)
        return found["bbox_ap"]

    assert precision(inside) == pytest.approx(precision()) == pytest.approx(1)
    assert precision(outside) < 0.9


def test_detections_are_scaled_back_and_pasted(make_split):
    entries = [annotation((10, 10, 20, 30), 4), annotation((0, 0, 9, 9), 2)]
    split = make_split(entries, train=False)
    truth = split.truth([0])
    # Images of 60 x 50 were scaled to 120 x 100; the second one is padding.
    found = {
        "number": np.array([1, 0]),
        "size": np.array([[100, 120], [0, 0]]),
        "boxes": np.array([[[20, 20, 60, 80], [0, 0, 18, 18], [0, 0, 0, 0]]] * 2),
        "scores": np.array([[0.9, 0.8, 0.0]] * 2),
        "classes": np.array([[4, 2, 1]] * 2),
        "masks": np.ones((2, 3, 28, 28)),
    }
    results = scoring.to_coco(found, split)
    assert [result["category_id"] for result in results] == [4, 2]
    assert results[0]["bbox"] == [10, 10, 20, 30]
    score = scoring.score(truth, results, with_masks=True)
    assert score["bbox_ap"] == pytest.approx(1)
    assert score["segm_ap50"] == pytest.approx(1)
    found["size"][0] = [50, 60]
    wrong = scoring.score(truth, scoring.to_coco(found, split), with_masks=True)
    assert wrong["bbox_ap"] < 0.5
