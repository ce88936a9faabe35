"""Jorge on several devices: what needs one of them, and the start of what needs all."""

import jax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jorge_optax import Sharded, jorge
from tests.helpers.contract import random_trees
from tests.helpers.devices import run_on_eight_devices


def test_on_eight_devices():
    run_on_eight_devices("tests/contracts/on_eight_devices.py")


def test_failures_on_eight_devices_are_raised(tmp_path):
    module = tmp_path / "fails.py"
    module.write_text("def test_fails():\n    assert 1 == 2\n")
    with pytest.raises(AssertionError, match="assert 1 == 2"):
        run_on_eight_devices(str(module))


def make_mesh():
    return jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))


def test_of_one_device_nothing_changes():
    mesh = make_mesh()
    params, grads = random_trees(2)
    texts = [
        jax.jit(tx.update).lower(grads, tx.init(params), params).as_text()
        for tx in (
            jorge(0.05),
            jorge(0.05, sharding=NamedSharding(mesh, P("x"))),
            jorge(0.05, sharding=Sharded(mesh, lambda path, shape: P())),
            jorge(0.06),
        )
    ]
    assert texts[0] == texts[1] == texts[2]
    assert texts[0] != texts[3]
