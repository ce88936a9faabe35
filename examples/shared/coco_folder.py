"""A split of COCO in a folder: its annotations, checked, and its images and masks."""

import os
import pathlib
from collections.abc import Iterable

import numpy as np

from examples.shared import images
from examples.shared.coco_format import Annotation, rasterize, read_instances


class CocoFolder:
    """Images and instances of a split; what is read is checked.

    Attributes:
      json: The file of the annotations.
      pictures: The images by id.
      annotations: All of them.
    """

    def __init__(self, folder: pathlib.Path, name: str):
        """Reads the annotations.

        Args:
          folder: Has annotations/instances_<name>.json and the folder <name> of images.
          name: "train2017" or "val2017".
        """
        self.json = folder / "annotations" / f"instances_{name}.json"
        self._remedy = (
            f"unpack COCO 2017 (https://cocodataset.org) in {folder}, so that it has "
            "annotations/, train2017/ and val2017/."
        )
        self._folder = folder / name
        self.pictures, self.annotations = read_instances(self.json, self._remedy)

    def check_files(self, keys: Iterable[int]) -> None:
        """Raises an error if the folder lacks the file of one of these images.

        No name leads out of the folder: it must be among those that the folder lists.
        """
        if not self._folder.is_dir():
            raise FileNotFoundError(f"{self._folder} is missing: {self._remedy}")
        present = {entry.name for entry in os.scandir(self._folder)}
        for key in keys:
            name = self.pictures[key].file_name
            if name not in present:
                raise FileNotFoundError(
                    f"{self._folder / name} is missing, which {self.json} lists: "
                    "unpack the images again."
                )

    def image(self, key: int) -> np.ndarray:
        """Reads an image, bytes [height, width, 3]."""
        name, height, width = self.pictures[key]
        return images.decode(self._folder / name, (height, width), self.json)

    def mask(self, annotation: Annotation) -> np.ndarray:
        """Returns the mask of an instance, bool [height, width]."""
        key = annotation.picture
        try:
            return rasterize(annotation.segmentation, *self.pictures[key][1:])
        except ImportError:
            raise
        except Exception as error:  # pycocotools raises just that
            raise ValueError(
                f"{self.json} has a segmentation of image {key} that cannot be read "
                f"({annotation.name}: {error}): fetch it again."
            ) from error


def require(folder: str | os.PathLike | None) -> pathlib.Path:
    """Returns the folder of COCO, or says that it was not given."""
    if folder is None:
        raise FileNotFoundError(
            "COCO needs the folder that has annotations/, train2017/ and val2017/."
        )
    return pathlib.Path(folder)
