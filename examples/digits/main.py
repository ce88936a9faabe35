"""The demo: a small ResNet on scikit-learn's digits, offline, in minutes.

python -m examples.digits.main                     SGD, AdamW and Jorge; writes demo.png
python -m examples.digits.main --quick             the same, one seed of 10 steps
python -m examples.digits.main --optimizer jorge   Jorge alone, same seeds
"""

from examples.digits import configs, train
from examples.shared import flags

if __name__ == "__main__":
    flags.launch(
        __doc__, configs.CONFIGS, train.make_task, note=configs.NOTE, **configs.DEMO
    )
