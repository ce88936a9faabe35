"""Detections: the boxes, scores, classes and masks of images."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from examples.detection import boxes
from examples.detection.models import MaskRCNN
from examples.detection.nms import nms
from examples.detection.proposals import propose, select
from examples.detection.settings import Settings

CLASSES_AT_ONCE = 16  # whose suppressions run together; each has a matrix of overlaps


class Detections(NamedTuple):
    """The best boxes of each image; idle ones have the score 0."""

    boxes: jax.Array  # [images, n, 4], in pixels of the padded image
    scores: jax.Array  # [images, n]
    classes: jax.Array  # [images, n]
    masks: jax.Array | None  # probabilities [images, n, bins, bins], of the box


def detect(model: MaskRCNN, images: jax.Array, sizes: jax.Array) -> Detections:
    """Detects objects in images [n, H, W, C] of sizes [n, 2] without padding."""
    settings = model.settings
    levels = model.features(images)
    proposed = propose(model, levels, images.shape[1:3])
    rois, valid = select(proposed, sizes, settings, settings.test)
    logits, codes = model.box_head(model.pool(levels, rois, settings.box_bins))
    found = jax.vmap(lambda *parts: best(*parts, settings))(
        logits, codes, rois, valid, sizes.astype(jnp.float32)
    )
    if model.mask_head is None:
        return found
    pooled = model.pool(levels, found.boxes, settings.mask_bins)
    chosen = jax.nn.one_hot(found.classes, logits.shape[-1])[:, :, None, None]
    own = jnp.sum(model.mask_head(pooled) * chosen, axis=-1)
    return found._replace(masks=jax.nn.sigmoid(own))


def best(
    logits: jax.Array,
    codes: jax.Array,
    rois: jax.Array,
    valid: jax.Array,
    size: jax.Array,
    settings: Settings,
) -> Detections:
    """Returns the detections of one image, after suppression in each class.

    Args:
      logits: [rois, classes].
      codes: [rois, classes, 4].
      rois: [rois, 4].
      valid: Which are not idle, [rois].
      size: Of the image.
      settings: Of the detector.
    """
    scores = jax.nn.softmax(logits)[:, 1:]
    found = boxes.decode(codes[:, 1:], rois[:, None], settings.box_weights)
    found = boxes.clip(found, size)
    there = valid[:, None] & (scores > settings.minimum_score)
    there &= boxes.at_least(found, settings.minimum_detection)

    def suppress(parts: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return nms(*parts, settings.box_threshold)

    by_class = (found.swapaxes(0, 1), scores.T, there.T)
    kept = jax.lax.map(suppress, by_class, batch_size=CLASSES_AT_ONCE).T
    score, index = jax.lax.top_k(
        jnp.where(kept, scores, 0).ravel(), min(settings.detections, scores.size)
    )
    picked = found.reshape(-1, 4)[index] * (score > 0)[:, None]
    return Detections(picked, score, 1 + index % scores.shape[1], None)
