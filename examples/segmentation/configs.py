"""Workloads by name. The paper's is `deeplabv3-64`."""

from examples.shared.config import SGD, AdamW, Config, Schedule

CONFIGS = {
    # Rates tuned by `python -m benchmarks.training.workloads segmentation --tune`.
    "scenes": Config(
        dataset="scenes",
        model="deeplabv3-thin",
        batch_size=8,
        epochs=4,
        sgd=SGD(1.0, 1e-4, Schedule("polynomial")),
        adamw=AdamW(0.02, 0.01),
        eval_every=20,
        checkpoint_every=400,
        image_size=48,
        test_examples=208,
    ),
    # torchvision's reference and the paper's tables of hyperparameters.
    "deeplabv3-64": Config(
        dataset="coco",
        model="deeplabv3-resnet50",
        batch_size=64,
        epochs=30,
        sgd=SGD(0.02, 1e-4, Schedule("polynomial")),
        adamw=AdamW(0.0002, 0.01),
        update_interval=4,
        eval_every=1445,
        decay_all=True,
        threads=16,
        learning_rate_factors=(("aux_classifier", 10.0),),
    ),
}
