"""Semantic segmentation: DeepLabv3 on COCO or on composed scenes."""
