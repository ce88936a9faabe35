"""Shapes of ResNet-50, as the package plans and describes them."""

import math

import jax

from benchmarks.problems import shapes
from jorge_optax import Tiling, describe
from jorge_optax._stacks import plan_tree


def test_describe_compares_with_sgd_and_adamw():
    table = describe(shapes.resnet(50))
    assert table.parameter_bytes == 4 * 25_557_032
    assert table.sgd_bytes == table.parameter_bytes
    assert table.adamw_bytes == 2 * table.parameter_bytes + 4
    assert 1.9 < table.state_bytes / table.adamw_bytes < 2.1


def test_resnet50_needs_few_stacks_and_no_padding():
    params = shapes.resnet(50)
    plan = plan_tree(params, Tiling())
    total = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    matrices = [leaf for leaf in plan.leaves if leaf.view]
    vectors = [leaf for leaf in plan.leaves if not leaf.view]
    assert total == 25_557_032
    assert len(matrices) == 53 + 1
    assert all(len(leaf.shape) == 1 for leaf in vectors)
    in_matrices = sum(math.prod(leaf.shape) for leaf in matrices)
    assert in_matrices == total - 2 * 26_560 - 1000
    assert sum(map(math.prod, plan.stacks.values())) == in_matrices
    assert len(plan.stacks) <= 16
    assert max(max(shape[1:]) for shape in plan.stacks.values()) <= 256
    assert len(plan_tree(params, Tiling(1000)).stacks) > len(plan.stacks)
