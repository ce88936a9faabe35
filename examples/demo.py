"""Trains a small ResNet on digits with SGD, AdamW and Jorge, and compares them.

All three start from the same weights and see the same batches, for each seed.
"""

import argparse

import matplotlib

matplotlib.use("Agg")

from digits import data, report, training  # noqa: E402
from digits.optimizers import make_optimizers  # noqa: E402
from tqdm import tqdm  # noqa: E402
