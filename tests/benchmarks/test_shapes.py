"""Shapes of ResNet-50, as the package describes them and keeps its roots."""

import math

import jax
import optax

from benchmarks.problems import shapes
from jorge_optax import describe, jorge


def test_describe_compares_with_sgd_and_adamw():
    table = describe(shapes.resnet(50))
    assert table.parameter_bytes == 4 * 25_557_032
    assert table.sgd_bytes == table.parameter_bytes
    assert table.adamw_bytes == 2 * table.parameter_bytes + 4
    assert 1.9 < table.state_bytes / table.adamw_bytes < 2.1


def test_resnet50_needs_few_stacks_and_little_padding():
    params = shapes.resnet(50)
    matrices = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim > 1]
    assert len(matrices) == 53 + 1
    state = jax.eval_shape(jorge(0.1).init, params)
    stacks = [own.shape for own in optax.tree.get(state, "average").values()]
    assert len(stacks) <= 10
    entries = sum(leaf.size for leaf in matrices)
    assert entries <= sum(map(math.prod, stacks)) < 1.01 * entries
