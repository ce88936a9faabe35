"""The models and rules of which counts are pinned."""

import jax

from benchmarks.problems import language_model, shapes
from jorge_optax import BinomialSeries, Whitening

MODELS = {
    "resnet50": lambda: shapes.resnet(50),
    "deeplabv3_resnet50": shapes.deeplabv3_resnet50,
    # Two blocks of width 128, a context of 64, 256 bytes.
    "transformer": lambda: jax.eval_shape(lambda: language_model.init(0)),
}
RULES = {
    "series": BinomialSeries(),
    "whitening": Whitening(),
}
