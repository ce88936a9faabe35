"""The prototypes of the ablation are what they say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.training.prototypes import Corrected
from jorge_optax import Whitening, scale_by_jorge


def directions(rule):
    rng = np.random.default_rng(0)
    optimizer = scale_by_jorge(rule=rule, momentum=0.9, update_interval=2)
    state = optimizer.init(jnp.zeros((12, 9)))
    update = jax.jit(optimizer.update)
    found = []
    for _ in range(12):
        gradient = np.geomspace(1, 0.05, 12)[:, None] * rng.normal(size=(12, 9))
        direction, state = update(jnp.asarray(gradient, jnp.float32), state)
        found.append(direction)
    return np.stack(found)


def test_the_ablated_rule_with_all_its_parts_is_the_packages():
    np.testing.assert_allclose(
        directions(Corrected()), directions(Whitening()), rtol=2e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "change",
    [
        {"preconditions": "gradient"},
        {"preconditions": "momentum"},
        {"power": 4},
        {"coupled": False},
        {"normalize": False},
        {"orthogonalize": 2},
        {"source": "momentum"},
        {"start": 0.1},
        {"nodes": 2, "linear": True},
    ],
)
def test_each_part_makes_a_difference(change):
    found, whole = directions(Corrected(**change)), directions(Corrected())
    unit = [x / np.linalg.norm(x, axis=(1, 2), keepdims=True) for x in (found, whole)]
    assert np.linalg.norm(unit[0] - unit[1]) > 0.05
