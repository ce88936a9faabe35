"""Masks of instances: cut out for training, pasted into the image after detection."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples.detection.roi_align import SAMPLES, sample_places

THRESHOLD = 0.5  # of a probability, above which a pixel belongs to the mask


def project(
    crops: jax.Array, boxes: jax.Array, rois: jax.Array, size: int
) -> jax.Array:
    """Returns the masks that the mask head should give for boxes, [n, size, size].

    As torchvision's RoIAlign of a whole mask, but from a crop of it, so that the mask
    of an instance takes the same room in an image of any size. As there, the value of
    pixel i is at coordinate i. A bin has the mean of `SAMPLES` x `SAMPLES` samples.

    Args:
      crops: The part of each mask that is in its box, from 0 to 1, [n, m, m].
      boxes: Around these masks, [n, 4].
      rois: What the head sees, [n, 4].
      size: Bins each way.
    """
    cells = crops.shape[-1]

    def weights(axis: int) -> jax.Array:
        low, length = rois[:, axis], rois[:, 2 + axis] - rois[:, axis]
        start, extent = boxes[:, axis], boxes[:, 2 + axis] - boxes[:, axis]
        pixel = sample_places(low, jnp.maximum(length, 1), size)
        share = (pixel + 0.5 - start[:, None]) / extent[:, None]
        cell = jnp.arange(cells, dtype=rois.dtype)[None, None]
        distance = jnp.abs(cells * share[..., None] - 0.5 - cell)
        hats = jnp.maximum(1 - distance, 0)
        return hats.reshape(len(rois), size, SAMPLES, cells).mean(axis=2)

    return jnp.einsum("nyx,npy,nqx->npq", crops, weights(1), weights(0))


def crop(mask: np.ndarray, box: np.ndarray, cells: int) -> np.ndarray:
    """Returns the part of a mask in its box, bytes [cells, cells]: its share of 255.

    Args:
      mask: bool [height, width].
      box: Left, top, right, bottom, in pixels of the mask; inside of it.
      cells: Each way.
    """
    down = _coverage(box[1], box[3], cells, mask.shape[0])
    right = _coverage(box[0], box[2], cells, mask.shape[1])
    return np.round(255 * (down @ mask.astype(np.float32) @ right.T)).astype(np.uint8)


def _coverage(low: float, high: float, cells: int, pixels: int) -> np.ndarray:
    """Returns the share of each cell that each pixel covers, [cells, pixels]."""
    edges = np.linspace(low, high, cells + 1)
    starts = np.arange(pixels)
    overlap = np.minimum(edges[1:, None], starts + 1) - np.maximum(
        edges[:-1, None], starts
    )
    return (np.maximum(overlap, 0) * cells / (high - low)).astype(np.float32)


def encode(mask: np.ndarray) -> dict[str, Any]:
    """Returns COCO's compressed RLE of a mask, bool [height, width]."""
    from pycocotools import mask as coco

    return dict(coco.encode(np.asfortranarray(mask, np.uint8)))


def paste(
    probabilities: np.ndarray, box: np.ndarray, height: int, width: int
) -> np.ndarray:
    """Returns what the mask head gave for a box as a mask, bool [height, width].

    As in torchvision, the grid is padded by one cell of zeros on each side, the box
    grows as much and is rounded to pixels, and the grid is scaled to it.

    Args:
      probabilities: [cells, cells].
      box: Left, top, right, bottom, in pixels of the image.
      height: Of the image.
      width: Of the image.
    """
    cells = len(probabilities)
    padded = np.pad(np.asarray(probabilities, np.float32), 1)
    middle, half = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]) / 2
    half = half * (cells + 2) / cells
    left, top = np.trunc(middle - half).astype(int)
    right, bottom = np.trunc(middle + half).astype(int)
    rows = _interpolation(top, bottom, height, cells + 2)
    columns = _interpolation(left, right, width, cells + 2)
    return rows @ padded @ columns.T > THRESHOLD


def _interpolation(first: int, last: int, pixels: int, cells: int) -> np.ndarray:
    """Returns weights of cells scaled to pixels first to last, [pixels, cells].

    It is torch's bilinear interpolation without aligned corners; pixels outside have no
    weights.
    """
    length = max(last - first + 1, 1)
    pixel = np.arange(max(first, 0), min(first + length, pixels))
    place = (pixel - first + 0.5) * cells / length - 0.5
    place = np.clip(place, 0, cells - 1).astype(np.float32)
    weights = np.zeros((pixels, cells), np.float32)
    distance = np.abs(place[:, None] - np.arange(cells, dtype=np.float32))
    weights[pixel] = np.maximum(1 - distance, 0)
    return weights
