"""Workloads by name. The paper's are `resnet50-256` and `resnet50-1024`."""

from examples.shared import digits
from examples.shared.config import SGD, AdamW, Config, Schedule

CONFIGS = {
    "digits": digits.CONFIG,
    "fashion-mnist": Config(
        dataset="fashion-mnist",
        model="resnet8",
        batch_size=128,
        epochs=5,
        sgd=SGD(0.1, 5e-4, Schedule("cosine")),
        adamw=AdamW(0.003, 0.01),
    ),
    "cifar10": Config(
        dataset="cifar10",
        model="resnet20",
        batch_size=128,
        epochs=30,
        sgd=SGD(0.1, 5e-4, Schedule("cosine")),
        adamw=AdamW(0.003, 0.01),
        eval_every=390,
    ),
    # Small enough for two CPU cores: images halved to 16 x 16, a thin network. Learning
    # rates tuned by `python -m benchmarks.training.workloads classification --tune`.
    "cifar10-16px": Config(
        dataset="cifar10",
        model="resnet8-thin",
        batch_size=128,
        epochs=4,
        sgd=SGD(0.5, 5e-4, Schedule("cosine")),
        adamw=AdamW(0.01, 0.01),
        eval_every=20,
        checkpoint_every=400,
        image_size=16,
        test_examples=2560,
    ),
    # torchvision's reference and the paper's tables of hyperparameters.
    "resnet50-256": Config(
        dataset="imagenet",
        model="resnet50",
        batch_size=256,
        epochs=90,
        sgd=SGD(0.1, 1e-4, Schedule("steps", drops=(30, 60))),
        adamw=AdamW(0.001, 0.1),
        update_interval=2,
        eval_every=5004,
        decay_all=True,
        threads=16,
    ),
    "resnet50-1024": Config(
        dataset="imagenet",
        model="resnet50",
        batch_size=1024,
        epochs=90,
        sgd=SGD(0.4, 1e-4, Schedule("steps", drops=(30, 60), warmup_epochs=5)),
        adamw=AdamW(0.004, 0.1),
        update_interval=50,
        eval_every=1251,
        decay_all=True,
        threads=16,
    ),
}
