"""The calculator of costs gives what was compiled, and what a whole trace gives."""

import jax
import pytest

from benchmarks.cost import counts, scale, shares
from benchmarks.harness import results
from benchmarks.problems import shapes
from benchmarks.reports import scale as report
from jorge_optax import Numerics, Tiling, jorge

OPTIONS = (
    {},
    {"max_dim": 128},
    {"root_dtype": "bfloat16"},
    {"accumulator_dtype": "bfloat16"},
)


def calculate(model, optimizer, max_dim=256, **dtypes):
    params = shapes.MODELS[model]()
    if optimizer in shares.BASELINES:
        return shares.baseline(optimizer, params)
    rule, tiling = shares.RULES[optimizer], Tiling(max_dim)
    return shares.calculate(params, rule=rule, tiling=tiling, **dtypes).cost


@pytest.mark.parametrize("model", ["resnet50", "deeplabv3_resnet50"])
@pytest.mark.parametrize("name", ["sgd", "adamw"])  # rows of rules are of lab-0.1
def test_numbers_are_those_of_the_compiled_updates(model, name):
    found = {
        row["device"]: (row["flops"], row["least_bytes"], row["bound_seconds"])
        for row in results.read("gpu_compile")["rows"]
        if (row["model"], row["optimizer"]) == (model, name)
    }

    def calculated(model):
        cost = calculate(model, name)
        flops, least = cost.flops._asdict(), cost.least_bytes
        return {d: (flops, least, cost.bounds(d)) for d in ("A100", "H100")}

    assert calculated(model) == found
    assert calculated("resnet18") != found


@pytest.mark.parametrize("rule", scale.RULES)
def test_numbers_are_those_of_the_whole_update(rule):
    """Calculated from stacks; here the update of all parameters is traced."""
    params = shapes.MODELS["resnet18"]()
    found = []
    for options in OPTIONS:
        own = dict(options)
        tiling = Tiling(own.pop("max_dim", 256))
        numerics = Numerics(
            own.get("root_dtype", "float32"), own.get("accumulator_dtype")
        )
        optimizer = jorge(
            0.1, rule=shares.RULES[rule], tiling=tiling, numerics=numerics
        )
        state = jax.eval_shape(optimizer.init, params)
        least = counts.least_bytes(state, params)
        expected = shares.Cost(
            counts.tree_bytes(state),
            counts.matmul_flops(optimizer.update, params, state, params),
            {kind: x + counts.tree_bytes(params) for kind, x in least.items()},
        )
        assert calculate("resnet18", rule, **options) == expected
        assert expected not in found  # every option changes something
        found.append(expected)


def test_means_and_bounds_by_hand():
    flops = counts.Flops(39 * 10**12, 39 * 10**13)
    cost = shares.Cost(1, flops, {"plain": 2_039 * 10**9, "refresh": 10**13})
    assert cost.mean_flops(1) == sum(flops)
    assert cost.mean_flops(10) == 78e12
    assert cost.mean_bytes(1) == 10**13
    assert cost.bounds("A100") == {"plain": 2, "refresh": 22}
    assert cost.mean_bound("A100", 1) == 22
    assert cost.mean_bound("A100", 10) == 4
    # In TF32 a plain step is bound by the bandwidth, in float32 by its operations.
    mixed = cost.bounds("A100", "tf32", "float32")
    assert mixed == {"plain": 1, "refresh": 20.25}
    assert cost.bounds("A100", "tf32")["refresh"] == 10**13 / 2_039e9
    assert cost.bounds("H100") != cost.bounds("A100")


def test_a_share_of_several_devices_moves_less():
    params = shapes.MODELS["resnet18"]()
    one, eight = (shares.calculate(params, n).cost for n in (1, 8))
    for kind in ("plain", "refresh"):
        assert 1 / 8 < eight.least_bytes[kind] / one.least_bytes[kind] < 0.15


def test_tables_show_the_rows():
    header, table = report.scale_models()
    assert len(table) == len(report.MODELS) * len(report.OPTIMIZERS)
    at = header.index("bound, ms, A100, float32")
    own = next(row for row in table if row[0] == "ResNet-50" and "Whit" in row[2])
    options = report.DEFAULTS | {"model": "resnet50", "optimizer": "whitening"}
    rows = results.read("scale")["rows"]
    cost = report.cost_of(next(r for r in rows if options.items() <= r.items()))
    assert own[at] == f"{1e3 * cost.mean_bound('A100', 10):.3g}"
    assert own[at] != f"{1e3 * cost.mean_bound('A100', 50):.3g}"
