"""The peers of the examples' workloads are built as their names say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.training import workloads

CONFIG = workloads.WORKLOADS["classification"][0]


def decay(name: str, rate: float) -> float:
    """What the first step takes of a kernel without a gradient."""
    built = workloads.build(name, CONFIG, steps=10, steps_per_epoch=5, rate=rate)
    params = {"dense": {"kernel": jnp.ones((8, 4)), "bias": jnp.ones(4)}}
    zeros = jax.tree.map(jnp.zeros_like, params)
    tx = built.transformation
    updates, _ = tx.update(zeros, tx.init(params), params)
    np.testing.assert_array_equal(updates["dense"]["bias"], 0)
    return float(-jnp.mean(updates["dense"]["kernel"]))


@pytest.mark.parametrize("name", ["muon", "soap", "by-shape"])
def test_peers_have_adamws_decay_per_step_or_sgds(name):
    rate = 0.2
    of_adamw = CONFIG.adamw.learning_rate * CONFIG.adamw.weight_decay
    sgd = CONFIG.sgd
    of_sgd = sgd.learning_rate * sgd.weight_decay / (1 - sgd.momentum)
    assert of_sgd > 2 * of_adamw
    assert decay(name, rate) == pytest.approx(of_adamw, rel=1e-5)
    assert decay(name + workloads.DECAY, rate) == pytest.approx(of_sgd, rel=1e-5)
