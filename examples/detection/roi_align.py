"""RoIAlign: features of a box, as a grid of equal size for boxes of any size.

As torchvision's with `aligned=False`: the value of cell i is at coordinate i, and a box
has a side of one cell at least.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

SAMPLES = 2  # in each bin, each way


def assign_levels(
    rois: jax.Array, strides: Sequence[int], canonical_size: float
) -> jax.Array:
    """Returns the number of the level that each box is read from, int32 [n].

    Args:
      rois: [n, 4], in pixels of the image.
      strides: Of the levels, each twice the one before.
      canonical_size: Side of a box that is read from the level of stride 16, if there
        is one; half the side means half the stride.
    """
    sides = rois[:, 2:] - rois[:, :2]
    side = jnp.sqrt(jnp.maximum(jnp.prod(sides, axis=-1), 1e-12))
    level = jnp.floor(4 + jnp.log2(side / canonical_size) + 1e-6)
    first = round(np.log2(strides[0]))
    return jnp.clip(level - first, 0, len(strides) - 1).astype(jnp.int32)


def roi_align(
    levels: Sequence[jax.Array],
    strides: Sequence[int],
    rois: jax.Array,
    level: jax.Array,
    size: int,
) -> jax.Array:
    """Returns the features of boxes in one image, [n, size, size, channels].

    Each bin has the mean of `SAMPLES` x `SAMPLES` bilinear samples.

    Args:
      levels: Features [rows, columns, channels] of each level.
      strides: Of the levels, in pixels.
      rois: [n, 4], in pixels of the image.
      level: Which one each box is read from, [n].
      size: Bins each way.
    """
    shapes = np.array([feature.shape[:2] for feature in levels])
    starts = np.concatenate([[0], np.cumsum(shapes.prod(axis=1))[:-1]])
    flat = jnp.concatenate([f.reshape(-1, f.shape[-1]) for f in levels])
    rows, columns = jnp.asarray(shapes)[level].T
    scaled = rois / jnp.asarray(strides, rois.dtype)[level][:, None]
    y, weights_y = _corners(scaled[:, 1], scaled[:, 3], rows, size)
    x, weights_x = _corners(scaled[:, 0], scaled[:, 2], columns, size)
    down = jnp.asarray(starts)[level][:, None, None] + y * columns[:, None, None]
    places = down[:, :, :, None, None] + x[:, None, None]  # [n, size, 4, size, 4]
    return jnp.einsum("npaqbc,npa,nqb->npqc", flat[places], weights_y, weights_x)


def _corners(
    low: jax.Array, high: jax.Array, cells: jax.Array, size: int
) -> tuple[jax.Array, jax.Array]:
    """Returns cells and weights of the samples along an axis, each [n, size, 4].

    Args:
      low: Where the boxes begin, in cells, [n].
      high: Where they end.
      cells: How many there are, [n].
      size: Bins.
    """
    cells = cells[:, None]
    place = sample_places(low, jnp.maximum(high - low, 1), size)
    inside = (place >= -1) & (place <= cells)
    place = jnp.clip(place, 0, cells - 1)
    first = jnp.floor(place).astype(jnp.int32)
    second = jnp.minimum(first + 1, cells - 1)
    share = place - first
    weights = jnp.stack([1 - share, share], axis=-1) * inside[..., None] / SAMPLES
    shape = (len(low), size, 2 * SAMPLES)
    return jnp.stack([first, second], -1).reshape(shape), weights.reshape(shape)


def sample_places(low: jax.Array, length: jax.Array, size: int) -> jax.Array:
    """Returns where samples are along an axis, [n, size * SAMPLES], evenly spaced."""
    steps = (np.arange(size * SAMPLES) + 0.5) / (size * SAMPLES)
    return low[:, None] + length[:, None] * jnp.asarray(steps, low.dtype)[None]
