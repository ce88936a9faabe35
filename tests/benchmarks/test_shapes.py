"""Shapes of ResNet-50, as the package describes them and keeps its roots."""

import math

import jax
import optax

from benchmarks.problems import shapes
from jorge_optax import Tiling, describe, jorge


def test_describe_compares_with_sgd_and_adamw():
    table = describe(shapes.resnet(50))
    assert table.parameter_bytes == 4 * 25_557_032
    assert table.sgd_bytes == table.parameter_bytes
    assert table.adamw_bytes == 2 * table.parameter_bytes + 4
    assert 1.9 < table.state_bytes / table.adamw_bytes < 2.1


def stacks(params, max_dim):
    """Shape of each stack of tiles."""
    state = jax.eval_shape(jorge(0.1, tiling=Tiling(max_dim)).init, params)
    averages = optax.tree.get(state, "average")
    return [own.shape for own in averages.values()]


def test_resnet50_needs_few_stacks_and_little_padding():
    params = shapes.resnet(50)
    leaves = jax.tree.leaves(params)
    total = sum(leaf.size for leaf in leaves)
    matrices = [leaf for leaf in leaves if leaf.ndim > 1]
    assert total == 25_557_032
    assert len(matrices) == 53 + 1
    in_matrices = sum(leaf.size for leaf in matrices)
    assert in_matrices == total - 2 * 26_560 - 1000
    found = stacks(params, 256)
    assert in_matrices <= sum(map(math.prod, found)) < 1.01 * in_matrices
    assert len(found) <= 16
    assert max(max(shape[1:]) for shape in found) <= 256
    assert len(stacks(params, 1000)) > len(found)
