"""Shapes of ResNet-50, as describe sees them."""

from benchmarks.problems import shapes
from jorge_optax import describe


def test_describe_compares_with_sgd_and_adamw():
    table = describe(shapes.resnet(50))
    assert table.parameter_bytes == 4 * 25_557_032
    assert table.sgd_bytes == table.parameter_bytes
    assert table.adamw_bytes == 2 * table.parameter_bytes + 4
    assert 1.9 < table.state_bytes / table.adamw_bytes < 2.1
