"""The models and rules of which counts are pinned."""

import functools

import jax

from benchmarks.cost import updates
from benchmarks.gpu import target
from benchmarks.problems import language_model, shapes
from jorge_optax import BinomialSeries, Whitening, jorge

MODELS = {
    "resnet50": lambda: shapes.resnet(50),
    # Two blocks of width 128, a context of 64, 256 bytes.
    "transformer": lambda: jax.eval_shape(lambda: language_model.init(0)),
}
RULES = {"series": BinomialSeries(), "whitening": Whitening()}
CASES = [(model, rule) for model in MODELS for rule in RULES]


def compile_update(model, rule, device, donated=(0, 1)):
    """The parameters, the state and the program of an update for a GPU."""
    optimizer, params = jorge(0.1, 0.9, 1e-3, rule=RULES[rule]), MODELS[model]()
    state = jax.eval_shape(optimizer.init, params)
    step = functools.partial(updates.update, optimizer)
    structs = params, state, params
    return params, state, target.compile_for(device, step, structs, donated)
