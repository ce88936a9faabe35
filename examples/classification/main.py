"""Image classification with a ResNet: SGD, AdamW, Shampoo or Jorge.

python -m examples.classification.main                                 Jorge on digits
python -m examples.classification.main --compare sgd jorge-whitening   a table, a plot
"""

from examples.classification import configs, train
from examples.shared import flags

if __name__ == "__main__":
    flags.launch(__doc__, configs.CONFIGS, train.make_task)
