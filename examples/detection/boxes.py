"""Boxes [..., 4] as left, top, right, bottom: overlap, codes relative to others.

Arrays of one call have equal ranks: give `[R, 1, 4]` beside `[R, K, 4]`.
"""

import math

import jax
import jax.numpy as jnp

MAX_LOG_RATIO = math.log(1000 / 16)  # of a side that is decoded

Weights = tuple[float, float, float, float]


def area(boxes: jax.Array) -> jax.Array:
    """Returns the areas [...]; that of an idle box, all zeros, is 0."""
    left, top, right, bottom = split(boxes)
    return (right - left) * (bottom - top)


def iou(one: jax.Array, other: jax.Array) -> jax.Array:
    """Returns intersection over union of each pair, [n, m] of [n, 4] and [m, 4].

    It is 0 where both are idle.
    """
    a, b = one[:, None], other[None]
    low = jnp.maximum(a[..., :2], b[..., :2])
    high = jnp.minimum(a[..., 2:], b[..., 2:])
    shared = jnp.prod(jnp.maximum(high - low, 0), axis=-1)
    union = area(a) + area(b) - shared
    return jnp.where(union > 0, shared / jnp.where(union > 0, union, 1), 0)


def encode(boxes: jax.Array, anchors: jax.Array, weights: Weights) -> jax.Array:
    """Returns what `decode` turns into the boxes again.

    Args:
      boxes: To encode; they need a positive width and height.
      anchors: To which the codes are relative.
      weights: Factors of the codes: both places, width, height.
    """
    x, y, width, height = _centers(boxes)
    anchor_x, anchor_y, anchor_width, anchor_height = _centers(anchors)
    codes = (
        (x - anchor_x) / anchor_width,
        (y - anchor_y) / anchor_height,
        jnp.log(width / anchor_width),
        jnp.log(height / anchor_height),
    )
    return jnp.stack([w * c for w, c in zip(weights, codes, strict=True)], axis=-1)


def decode(codes: jax.Array, anchors: jax.Array, weights: Weights) -> jax.Array:
    """Returns the boxes of codes; none is more than 62.5 times as long as its anchor.

    Args:
      codes: Of the boxes.
      anchors: To which they are relative.
      weights: Those that they were encoded with.
    """
    x, y, width, height = _centers(anchors)
    right, down, wider, taller = (
        code / weight for code, weight in zip(split(codes), weights, strict=True)
    )
    x, y = x + right * width, y + down * height
    width = width * jnp.exp(jnp.minimum(wider, MAX_LOG_RATIO))
    height = height * jnp.exp(jnp.minimum(taller, MAX_LOG_RATIO))
    corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    return jnp.stack(corners, axis=-1)


def clip(boxes: jax.Array, size: jax.Array) -> jax.Array:
    """Returns the parts of boxes inside of an image; size is [height, width]."""
    left, top, right, bottom = split(boxes)
    height, width = size[0], size[1]
    corners = (
        jnp.clip(left, 0, width),
        jnp.clip(top, 0, height),
        jnp.clip(right, 0, width),
        jnp.clip(bottom, 0, height),
    )
    return jnp.stack(corners, axis=-1)


def at_least(boxes: jax.Array, side: float) -> jax.Array:
    """Returns whether both sides of each box have that length."""
    return jnp.all(boxes[..., 2:] - boxes[..., :2] >= side, axis=-1)


def split(boxes: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns the four numbers of boxes, or of codes, as four arrays."""
    return boxes[..., 0], boxes[..., 1], boxes[..., 2], boxes[..., 3]


def _centers(boxes: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns x and y of the centers, widths and heights."""
    left, top, right, bottom = split(boxes)
    width, height = right - left, bottom - top
    return left + width / 2, top + height / 2, width, height
