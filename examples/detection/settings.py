"""The numbers of a detector that are not learned; the defaults are torchvision's."""

import dataclasses

from examples.detection.boxes import Weights


@dataclasses.dataclass(frozen=True)
class Proposals:
    """How many boxes the region proposal network hands on.

    Attributes:
      before: The best of each level, before suppression.
      after: The best of all levels, after it.
    """

    before: int
    after: int


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of anchors, matching, sampling, suppression and pooling.

    Attributes:
      anchor_sizes: Side of the square anchors of each level.
      canonical_size: Side of a box that is pooled from the level of stride 16.
      rpn_high: Overlap from which an anchor is positive.
      rpn_low: Overlap below which an anchor is negative.
      rpn_sample: Anchors of an image that are trained on.
      rpn_fraction: Of them that are positive, at most.
      rpn_weights: Of the codes of anchors.
      rpn_threshold: Overlap above which a proposal is suppressed.
      train: Proposals in training.
      test: Proposals in evaluation.
      minimum_proposal: Side of a proposal, at least, in pixels.
      box_overlap: From which a proposal is positive, below which it is negative.
      box_sample: Proposals of an image that are trained on.
      box_fraction: Of them that are positive, at most.
      box_weights: Of the codes of detections.
      box_threshold: Overlap above which a detection of the same class is suppressed.
      minimum_score: Of a detection, more than that.
      minimum_detection: Side of a detection, at least, in pixels.
      detections: Of an image, at most.
      box_bins: Each way, of the features of the box head.
      mask_bins: Each way, of those of the mask head, which has twice as many outputs.
      beta: Where the loss of codes turns from quadratic to linear.
    """

    anchor_sizes: tuple[float, ...] = (32, 64, 128, 256, 512)
    canonical_size: float = 224
    rpn_high: float = 0.7
    rpn_low: float = 0.3
    rpn_sample: int = 256
    rpn_fraction: float = 0.5
    rpn_weights: Weights = (1, 1, 1, 1)
    rpn_threshold: float = 0.7
    train: Proposals = Proposals(2000, 2000)
    test: Proposals = Proposals(1000, 1000)
    minimum_proposal: float = 1e-3
    box_overlap: float = 0.5
    box_sample: int = 512
    box_fraction: float = 0.25
    box_weights: Weights = (10, 10, 5, 5)
    box_threshold: float = 0.5
    minimum_score: float = 0.05
    minimum_detection: float = 1e-2
    detections: int = 100
    box_bins: int = 7
    mask_bins: int = 14
    beta: float = 1 / 9

    @property
    def positives(self) -> int:
        """Returns how many proposals of a sample are positive, at most."""
        return max(1, int(self.box_sample * self.box_fraction))


TORCHVISION = Settings()
