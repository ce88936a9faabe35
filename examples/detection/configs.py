"""Workloads by name. The paper's is `maskrcnn-32`; its appendix has Faster R-CNN."""

import dataclasses

from examples.shared.config import SGD, AdamW, Config, Schedule

STEPS = Schedule("steps", drops=(16, 22))
# Small enough for two CPU cores, with the epochs and drops of the paper.
SCENES = Config(
    dataset="scenes",
    model="maskrcnn-thin",
    batch_size=8,
    epochs=26,
    sgd=SGD(0.05, 1e-4, STEPS),
    adamw=AdamW(0.005, 0.01),
    update_interval=8,
    eval_every=80,
    checkpoint_every=520,
    image_size=64,
)
FASTER_SCENES = dataclasses.replace(SCENES, model="fasterrcnn-thin")
# torchvision's reference and the paper's tables of hyperparameters. The backbone has
# constant norms and its first layers are frozen: it needs pretrained weights.
MASK_RCNN = Config(
    dataset="coco",
    model="maskrcnn-resnet50",
    batch_size=32,
    epochs=26,
    sgd=SGD(0.02, 1e-4, STEPS),
    adamw=AdamW(0.0002, 0.01),
    update_interval=8,
    eval_every=3664,
    decay_all=True,
    threads=16,
    learning_rate_factors=(("body/conv1", 0.0), ("body/layer1", 0.0)),
)


def with_cosine(config: Config) -> Config:
    """Returns the configuration with a cosine for SGD, and so for /sgd-schedule."""
    sgd = dataclasses.replace(config.sgd, schedule=Schedule("cosine"))
    return dataclasses.replace(config, sgd=sgd)


CONFIGS = {
    "scenes": SCENES,
    # The paper's experiment with schedules: `jorge` and `jorge/sgd-schedule` on both.
    "scenes-fasterrcnn": FASTER_SCENES,
    "scenes-fasterrcnn-cosine": with_cosine(FASTER_SCENES),
    "maskrcnn-32": MASK_RCNN,
    "fasterrcnn-32": dataclasses.replace(MASK_RCNN, model="fasterrcnn-resnet50"),
    "fasterrcnn-32-cosine": with_cosine(
        dataclasses.replace(MASK_RCNN, model="fasterrcnn-resnet50")
    ),
}
