"""The boxes that the region proposal network hands on."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from examples.detection import anchors, boxes
from examples.detection.models import MaskRCNN
from examples.detection.nms import nms
from examples.detection.settings import Proposals, Settings


class Proposed(NamedTuple):
    """What the head gives for each anchor, of all levels one after the other."""

    anchors: jax.Array  # [anchors, 4]
    logits: jax.Array  # [images, anchors]
    codes: jax.Array  # [images, anchors, 4]
    counts: tuple[int, ...]  # anchors of each level


def propose(
    model: MaskRCNN, levels: Sequence[jax.Array], image: tuple[int, int]
) -> Proposed:
    """Applies the head to all levels of images of that height and width."""
    sizes = model.settings.anchor_sizes
    found = [
        anchors.of_level(image, level.shape[1:3], size)
        for level, size in zip(levels, sizes, strict=True)
    ]
    logits, codes = zip(*map(model.rpn, levels), strict=True)
    return Proposed(
        jnp.concatenate([jnp.asarray(a) for a in found]),
        jnp.concatenate(logits, axis=1),
        jnp.concatenate(codes, axis=1),
        tuple(map(len, found)),
    )


def select(
    proposed: Proposed, sizes: jax.Array, settings: Settings, limits: Proposals
) -> tuple[jax.Array, jax.Array]:
    """Returns the best boxes [images, n, 4] without gradient, and which are not idle.

    Args:
      proposed: What the head gave.
      sizes: Height and width of each image, without its padding, [images, 2].
      settings: Of the detector.
      limits: How many boxes.
    """
    near, counts = proposed.anchors, proposed.counts
    most = min(limits.before, max(counts))

    def best_of(level: int, logits: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns logits and numbers of the best anchors, padded to `most`."""
        start, count = sum(counts[:level]), counts[level]
        found = jax.lax.top_k(logits[start : start + count], min(most, count))
        missing = (0, most - len(found[0]))
        logit = jnp.pad(found[0], missing, constant_values=-jnp.inf)
        return logit, jnp.pad(start + found[1], missing)

    def of_image(
        logits: jax.Array, codes: jax.Array, size: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        levels = [best_of(level, logits) for level in range(len(counts))]
        logit, index = (jnp.stack(part) for part in zip(*levels, strict=True))
        found = boxes.decode(codes[index], near[index], settings.rpn_weights)
        found = boxes.clip(found, size)
        valid = boxes.at_least(found, settings.minimum_proposal) & (logit > -jnp.inf)
        suppress = functools.partial(nms, threshold=settings.rpn_threshold)
        kept = jax.vmap(suppress)(found, logit, valid)
        scores = jnp.where(kept, logit, -jnp.inf).ravel()
        best, index = jax.lax.top_k(scores, min(limits.after, scores.size))
        valid = best > -jnp.inf
        return found.reshape(-1, 4)[index] * valid[:, None], valid

    inputs = proposed.logits, proposed.codes, sizes.astype(jnp.float32)
    return jax.vmap(of_image)(*jax.lax.stop_gradient(inputs))
