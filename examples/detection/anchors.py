"""Anchors: boxes of given sizes and proportions around each cell of the feature maps.

They depend on shapes alone, so that NumPy makes them while a program is traced.
"""

from collections.abc import Sequence

import numpy as np

RATIOS = (0.5, 1.0, 2.0)  # height over width


def around_origin(size: float, ratios: Sequence[float] = RATIOS) -> np.ndarray:
    """Returns a box of that area for each ratio, [ratios, 4], in whole pixels."""
    roots = np.sqrt(np.asarray(ratios, np.float32))
    width, height = np.float32(size) / roots, np.float32(size) * roots
    return np.round(np.stack([-width, -height, width, height], axis=1) / 2)


def of_level(
    image: tuple[int, int],
    grid: tuple[int, int],
    size: float,
    ratios: Sequence[float] = RATIOS,
) -> np.ndarray:
    """Returns the anchors of a feature map, float32 [rows * columns * ratios, 4].

    Args:
      image: Height and width of the padded images.
      grid: Rows and columns of the feature map.
      size: Square root of the anchors' areas.
      ratios: Heights over widths.
    """
    strides = (image[0] // grid[0], image[1] // grid[1])
    y, x = np.meshgrid(
        np.arange(grid[0]) * strides[0], np.arange(grid[1]) * strides[1], indexing="ij"
    )
    places = np.stack([x, y, x, y], axis=-1).reshape(-1, 1, 4)
    anchors = places + around_origin(size, ratios)[None]
    return anchors.reshape(-1, 4).astype(np.float32)
