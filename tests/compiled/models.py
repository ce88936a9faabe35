"""The models and rules of which counts are pinned."""

import jax

from benchmarks.problems import language_model, shapes
from jorge_optax import BinomialSeries, Whitening

MODELS = {
    "resnet50": lambda: shapes.resnet(50),
    # Two blocks of width 128, a context of 64, 256 bytes.
    "transformer": lambda: jax.eval_shape(lambda: language_model.init(0)),
}
RULES = {"series": BinomialSeries(), "whitening": Whitening()}
CASES = [(model, rule) for model in MODELS for rule in RULES]
