"""The losses of training: of proposals, of classes and boxes, and of masks.

A batch has the images, padded on the right and below, and for each image as many true
boxes as the largest number in the data set; those that are idle have the label -1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from examples.detection import boxes, masks, matching
from examples.detection.models import MaskRCNN
from examples.detection.proposals import Proposed, propose, select
from examples.detection.settings import Settings


class Truth(NamedTuple):
    """The true boxes of the images of a batch, or of one image."""

    boxes: jax.Array  # [images, boxes, 4]
    classes: jax.Array  # [images, boxes]; -1 if idle
    masks: jax.Array  # bytes [images, boxes, cells, cells]: of the part in the box

    @property
    def valid(self) -> jax.Array:
        """Returns which boxes are not idle."""
        return self.classes > 0


class Regions(NamedTuple):
    """Boxes that the heads are trained on, the positive ones first."""

    boxes: jax.Array  # [images, n, 4]
    classes: jax.Array  # [images, n]; 0 for the background
    valid: jax.Array  # [images, n]; the others are idle
    matches: jax.Array  # [images, n]: which true box


def losses(model: MaskRCNN, batch: dict[str, Any], key: jax.Array) -> dict[str, Any]:
    """Returns the losses of a batch by name; training minimizes their sum.

    Args:
      model: In training mode.
      batch: "image", "size" of each image without padding, "boxes", "label", "masks".
      key: Of the samples that are drawn.
    """
    settings = model.settings
    truth = Truth(batch["boxes"], batch["label"], batch["masks"])
    images = batch["image"]
    levels = model.features(images)
    proposed = propose(model, levels, images.shape[1:3])
    rpn_key, box_key = jax.random.split(key)
    objectness, rpn_boxes = proposal_losses(proposed, truth, settings, rpn_key)
    found, valid = select(proposed, batch["size"], settings, settings.train)
    regions = choose_regions(found, valid, truth, settings, box_key)
    pooled = model.pool(levels, regions.boxes, settings.box_bins)
    logits, codes = model.box_head(pooled)
    classes, box = box_losses(logits, codes, regions, truth, settings)
    result = {
        "objectness": objectness,
        "rpn_boxes": rpn_boxes,
        "classes": classes,
        "boxes": box,
    }
    if model.mask_head is not None:
        positive = Regions(*(part[:, : settings.positives] for part in regions))
        pooled = model.pool(levels, positive.boxes, settings.mask_bins)
        result["masks"] = mask_loss(model.mask_head(pooled), positive, truth)
    return result


def proposal_losses(
    proposed: Proposed, truth: Truth, settings: Settings, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the losses of objectness and of codes, over all anchors sampled."""

    def of_image(
        key: jax.Array, logits: jax.Array, codes: jax.Array, truth: Truth
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        near, valid = proposed.anchors, truth.valid
        matches = matching.match(
            boxes.iou(truth.boxes, near),
            valid,
            high=settings.rpn_high,
            low=settings.rpn_low,
            keep_best=True,
        )
        labels = jnp.where(matches >= 0, 1, jnp.where(matches == -1, 0, -1))
        sample = matching.sample(
            key, labels, size=settings.rpn_sample, fraction=settings.rpn_fraction
        )
        index = sample.indices
        near, own = near[index], truth.boxes[jnp.maximum(matches[index], 0)]
        own = jnp.where(sample.positive[:, None], own, near)
        wanted = boxes.encode(own, near, settings.rpn_weights)
        right = optax.sigmoid_binary_cross_entropy(
            logits[index], sample.positive.astype(jnp.float32)
        )
        code = smooth_l1(codes[index], wanted, settings.beta).sum(axis=-1)
        return (
            jnp.sum(right * sample.valid),
            jnp.sum(code * sample.positive),
            jnp.sum(sample.valid),
        )

    keys = jax.random.split(key, len(proposed.logits))
    right, code, count = jax.vmap(of_image)(
        keys, proposed.logits, proposed.codes, truth
    )
    count = jnp.maximum(count.sum(), 1)
    return right.sum() / count, code.sum() / count


def choose_regions(
    proposals: jax.Array,
    valid: jax.Array,
    truth: Truth,
    settings: Settings,
    key: jax.Array,
) -> Regions:
    """Draws the boxes that the heads are trained on from proposals and true boxes."""

    def of_image(
        key: jax.Array, proposals: jax.Array, valid: jax.Array, truth: Truth
    ) -> Regions:
        # True boxes last: what a proposal draws is the same, however many are idle.
        candidates = jnp.concatenate([proposals, truth.boxes])
        valid = jnp.concatenate([valid, truth.valid])
        matches = matching.match(
            boxes.iou(truth.boxes, candidates),
            truth.valid,
            high=settings.box_overlap,
            low=settings.box_overlap,
            keep_best=False,
        )
        own = truth.classes[jnp.maximum(matches, 0)]
        labels = jnp.where(valid, jnp.where(matches >= 0, own, 0), -1)
        sample = matching.sample(
            key, labels, size=settings.box_sample, fraction=settings.box_fraction
        )
        index = sample.indices
        return Regions(
            candidates[index],
            jnp.where(sample.positive, labels[index], 0),
            sample.valid,
            jnp.maximum(matches[index], 0),
        )

    keys = jax.random.split(key, len(proposals))
    return jax.vmap(of_image)(keys, proposals, valid, truth)


def box_losses(
    logits: jax.Array,
    codes: jax.Array,
    regions: Regions,
    truth: Truth,
    settings: Settings,
) -> tuple[jax.Array, jax.Array]:
    """Returns the losses of classes and of codes, over all regions."""
    positive = regions.classes > 0
    own = jnp.take_along_axis(truth.boxes, regions.matches[..., None], axis=1)
    # Where nothing is to be learned, something that can be encoded.
    whole = jnp.array([0.0, 0.0, 1.0, 1.0])[None, None]
    near = jnp.where(positive[..., None], regions.boxes, whole)
    own = jnp.where(positive[..., None], own, whole)
    wanted = boxes.encode(own, near, settings.box_weights)
    chosen = jnp.take_along_axis(codes, regions.classes[..., None, None], axis=2)
    code = smooth_l1(chosen[:, :, 0], wanted, settings.beta).sum(axis=-1)
    right = optax.softmax_cross_entropy_with_integer_labels(logits, regions.classes)
    count = jnp.maximum(jnp.sum(regions.valid), 1)
    return jnp.sum(right * regions.valid) / count, jnp.sum(code * positive) / count


def mask_loss(logits: jax.Array, regions: Regions, truth: Truth) -> jax.Array:
    """Returns the mean over the cells of all positive regions; 0 if there are none.

    Args:
      logits: [images, n, bins, bins, classes]; that of the true class counts.
      regions: As many.
      truth: With the masks.
    """
    positive = regions.classes > 0
    bins = logits.shape[2]

    def of_image(regions: Regions, truth: Truth) -> jax.Array:
        crops = truth.masks[regions.matches].astype(jnp.float32) / 255
        own = truth.boxes[regions.matches]
        there = (regions.classes > 0)[:, None]
        whole = jnp.array([0.0, 0.0, 1.0, 1.0])[None]
        return masks.project(crops, jnp.where(there, own, whole), regions.boxes, bins)

    wanted = jax.vmap(of_image)(regions, truth)
    chosen = jax.nn.one_hot(regions.classes, logits.shape[-1])[:, :, None, None]
    values = optax.sigmoid_binary_cross_entropy(
        jnp.sum(logits * chosen, axis=-1), wanted
    )
    means = jnp.mean(values, axis=(2, 3))
    return jnp.sum(means * positive) / jnp.maximum(jnp.sum(positive), 1)


def smooth_l1(found: jax.Array, wanted: jax.Array, beta: float) -> jax.Array:
    """Returns |x| - beta / 2, and x^2 / (2 beta) where |x| is less than beta."""
    return optax.huber_loss(found, wanted, delta=beta) / beta
