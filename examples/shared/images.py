"""Reads, crops, flips and scales images, as arrays [H, W, C]."""

import pathlib

import numpy as np
from PIL import Image

from examples.shared import checks

BILINEAR = Image.Resampling.BILINEAR
NEAREST = Image.Resampling.NEAREST

FILE_LIMIT = 2**28  # bytes
MAX_PIXELS = 2**26  # less than where Pillow warns of a decompression bomb
MAX_RATIO = 100  # of the longer side to the shorter, which is scaled to a given size

# Of ImageNet's training images, in bytes.
IMAGENET_MEAN = 255 * np.array([0.485, 0.456, 0.406], np.float32)
IMAGENET_STD = 255 * np.array([0.229, 0.224, 0.225], np.float32)


def decode(
    path: pathlib.Path,
    declared: tuple[int, int] | None = None,
    declared_by: pathlib.Path | None = None,
) -> np.ndarray:
    """Reads a JPEG or PNG file as RGB bytes.

    The size in its header is checked before a pixel is decoded.

    Args:
      path: Of the file.
      declared: Height and width that it must have; None for any.
      declared_by: The file that says so.
    """
    remedy = "fetch it again, or remove it from the data set."
    with checks.open_file(path, FILE_LIMIT, remedy) as file:
        try:
            with Image.open(file, formats=("JPEG", "PNG")) as image:
                width, height = image.size
                if declared in (None, (height, width)):
                    _check_size(height, width)
                    return np.asarray(image.convert("RGB"))
        except Exception as error:  # Pillow raises many kinds for broken files
            raise ValueError(f"{path} cannot be decoded ({error}): {remedy}") from error
    raise ValueError(
        f"{path} is {width}x{height}, but {declared_by} says "
        f"{declared[1]}x{declared[0]}: they do not belong together."
    )


def _check_size(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise ValueError(f"its size {width}x{height} exceeds {MAX_PIXELS} pixels")
    if max(height, width) > MAX_RATIO * min(height, width):
        raise ValueError(f"its sides {width}x{height} differ by more than {MAX_RATIO}")


def normalize(image: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Standardizes bytes to float32; mean and deviation are in bytes too."""
    return (image - mean) / std


def resize(
    image: np.ndarray, height: int, width: int, resample: Image.Resampling = BILINEAR
) -> np.ndarray:
    """Scales bytes [H, W, 3], or with `NEAREST` also a mask [H, W] of int32."""
    return np.asarray(Image.fromarray(image).resize((width, height), resample))


def resize_short_side(image: np.ndarray, size: int) -> np.ndarray:
    """Scales the shorter side to `size` and keeps the proportions."""
    height, width = image.shape[:2]
    short = min(height, width)
    return resize(image, size * height // short, size * width // short)


def center_crop(image: np.ndarray, size: int) -> np.ndarray:
    """Cuts a square out of the middle."""
    top, left = (round((side - size) / 2) for side in image.shape[:2])
    return image[top : top + size, left : left + size]


def random_flip(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Swaps left and right in half of the cases."""
    return image[:, ::-1] if rng.random() < 0.5 else image


def random_crop(
    image: np.ndarray, padding: int, rng: np.random.Generator
) -> np.ndarray:
    """Pads with zeros and cuts out a random part of the image's own size."""
    height, width, channels = image.shape
    padded = np.zeros(
        (height + 2 * padding, width + 2 * padding, channels), image.dtype
    )
    padded[padding : padding + height, padding : padding + width] = image
    top, left = rng.integers(0, 2 * padding + 1, size=2)
    return padded[top : top + height, left : left + width]


def random_shift(
    image: np.ndarray, pixels: int, rng: np.random.Generator
) -> np.ndarray:
    """Shifts by up to `pixels` each way and pads with the edge."""
    height, width = image.shape[:2]
    down, right = rng.integers(-pixels, pixels + 1, size=2)
    rows = np.clip(np.arange(height) - down, 0, height - 1)
    columns = np.clip(np.arange(width) - right, 0, width - 1)
    return image[rows[:, None], columns]


def random_resized_crop(
    image: np.ndarray, size: int, rng: np.random.Generator
) -> np.ndarray:
    """Scales a random part of the image to a square (Inception's augmentation)."""
    height, width = image.shape[:2]
    top, left, rows, columns = random_window(height, width, rng)
    return resize(image[top : top + rows, left : left + columns], size, size)


def random_window(
    height: int,
    width: int,
    rng: np.random.Generator,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> tuple[int, int, int, int]:
    """Draws top, left, height and width of a part of an image, by torchvision's rule.

    The part's share of the area and the logarithm of width over height are uniform.
    After ten parts that do not fit, it is the largest one in the middle whose
    proportions lie within `ratio`.
    """
    for _ in range(10):
        area = height * width * rng.uniform(*scale)
        aspect = np.exp(rng.uniform(*np.log(ratio)))
        rows, columns = round((area / aspect) ** 0.5), round((area * aspect) ** 0.5)
        if 0 < rows <= height and 0 < columns <= width:
            top = int(rng.integers(height - rows + 1))
            left = int(rng.integers(width - columns + 1))
            return top, left, rows, columns
    rows = min(height, round(width / ratio[0]))
    columns = min(width, round(height * ratio[1]))
    return (height - rows) // 2, (width - columns) // 2, rows, columns
