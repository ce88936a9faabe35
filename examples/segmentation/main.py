"""Semantic segmentation with DeepLabv3: SGD, AdamW, Shampoo or Jorge.

python -m examples.segmentation.main                                 Jorge on scenes
python -m examples.segmentation.main --compare sgd jorge-whitening   a table, a plot
"""

from examples.segmentation import configs, train
from examples.shared import flags

if __name__ == "__main__":
    flags.launch(__doc__, configs.CONFIGS, train.make_task)
