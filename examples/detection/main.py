"""Object detection with Mask R-CNN: SGD, AdamW, Shampoo or Jorge.

python -m examples.detection.main                                 Jorge on scenes
python -m examples.detection.main --compare sgd jorge-whitening   a table, a plot
"""

from examples.detection import configs, train
from examples.shared import flags

if __name__ == "__main__":
    flags.launch(__doc__, configs.CONFIGS, train.make_task)
