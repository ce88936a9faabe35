"""Average precision by pycocotools, of boxes and of masks."""

import contextlib
import os
from typing import Any

import numpy as np

from examples.detection import masks
from examples.detection.coco import CocoInstances
from examples.shared.data import Split, Subset

KINDS = {"bbox": "bbox", "segm": "segmentation"}  # -> the field of a prediction


def truth_of(split: Split) -> tuple[CocoInstances, dict[str, Any]]:
    """Returns the whole split that a test split is part of, and the part's truth."""
    if isinstance(split, Subset):
        whole, indices = split.split, split.indices
    else:
        whole, indices = split, np.arange(len(split))
    assert isinstance(whole, CocoInstances)
    return whole, whole.truth(indices.tolist())


def to_coco(found: dict[str, np.ndarray], split: CocoInstances) -> list[dict[str, Any]]:
    """Returns detections as COCO's results, in pixels of the images as they are.

    Args:
      found: "number" and "size" of the padded images, "boxes", "scores", "classes" and,
        of Mask R-CNN, "masks"; the first axis is that of the images.
      split: Of these images.
    """
    results = []
    for image, number in enumerate(found["number"].tolist()):
        if not number:  # a padded example
            continue
        height, width = split.size(number)
        rows, columns = found["size"][image].tolist()
        scale = np.array(2 * [width / columns, height / rows])
        for place in np.flatnonzero(found["scores"][image] > 0).tolist():
            box = found["boxes"][image, place] * scale
            left, top, right, bottom = box.tolist()
            result = {
                "image_id": split.key(number),
                "category_id": int(found["classes"][image, place]),
                "score": float(found["scores"][image, place]),
                "bbox": [left, top, right - left, bottom - top],
            }
            if "masks" in found:
                mask = masks.paste(found["masks"][image, place], box, height, width)
                result["segmentation"] = masks.encode(mask)
            results.append(result)
    return results


def average_precision(
    truth: dict[str, Any], results: list[dict[str, Any]], kind: str
) -> dict[str, float]:
    """Returns COCO's AP, over overlaps of 0.5 to 0.95, and that at 0.5.

    Args:
      truth: Of the images that were searched, as `CocoInstances.truth` returns it.
      results: What was found in them.
      kind: "bbox" or "segm".
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    names = (f"{kind}_ap", f"{kind}_ap50")
    if not results:
        return dict.fromkeys(names, 0.0)
    keys = ("image_id", "category_id", "score", KINDS[kind])
    own = [{key: result[key] for key in keys} for result in results]
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
        known = COCO()
        known.dataset = truth
        known.createIndex()
        score = COCOeval(known, known.loadRes(own), kind)
        # AP of all sizes alone: that of small ones and so on costs as much again.
        score.params.areaRng, score.params.areaRngLbl = [[0, 1e10]], ["all"]
        score.params.maxDets = [100]
        score.evaluate()
        score.accumulate()
    precision = score.eval["precision"]  # overlaps, recalls, classes, 1, 1; -1 if none
    values = (precision, precision[:1])
    means = (float(p[p > -1].mean()) if (p > -1).any() else 0.0 for p in values)
    return dict(zip(names, means, strict=True))


def score(
    truth: dict[str, Any], results: list[dict[str, Any]], *, with_masks: bool
) -> dict[str, float]:
    """Returns AP of boxes and, if there are any, of masks."""
    kinds = ("bbox", "segm") if with_masks else ("bbox",)
    values: dict[str, float] = {}
    for kind in kinds:
        values |= average_precision(truth, results, kind)
    return values
