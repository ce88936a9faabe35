"""Object detection: Mask R-CNN and Faster R-CNN on COCO or on composed scenes."""
