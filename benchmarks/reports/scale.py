"""Makes the tables of docs/results/scale.md, from benchmarks/cost/scale.py."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.cost.counts import Flops
from benchmarks.cost.shares import Cost
from benchmarks.gpu.target import DEVICES
from benchmarks.harness import results
from benchmarks.reports.rules import Table

MODELS = {
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "deeplabv3_resnet50": "DeepLabv3",
    "maskrcnn_resnet50_fpn": "Mask R-CNN",
    "gpt2_small": "GPT-2 small",
    "gpt2_xl": "GPT-2 XL",
    "llama2_7b": "Llama 2 7B",
    "llama2_70b": "Llama 2 70B",
}
OPTIMIZERS = {
    "adamw": "AdamW",
    "muon": "Muon",
    "series": "Jorge, the paper's rule",
    "whitening": "Jorge, `Whitening`",
}
RULES = ("series", "whitening")
DEFAULTS = {"max_dim": 256, "root_dtype": "float32", "accumulator_dtype": "float32"}
INTERVAL, INTERVALS = 10, (1, 10, 50)
AT_INTERVALS = "at " + ", ".join(map(str, INTERVALS))
PRECISIONS = {"float32": "float32", "tf32": "TF32"}
# Of the products of each step, and of those that a refresh adds.
PRODUCTS = {
    ("float32", "float32"): "float32",
    ("tf32", "float32"): "TF32, refresh in float32",
    ("tf32", "tf32"): "TF32",
}
# Of roots, and of momenta.
FLOAT32, BFLOAT16 = ("float32", "float32"), ("bfloat16", "bfloat16")
DTYPES = {
    FLOAT32: "float32",
    ("bfloat16", "float32"): "bfloat16 roots",
    BFLOAT16: "bfloat16 roots and momenta",
}

Row = dict[str, Any]


def _rows(**wanted: Any) -> list[Row]:
    """Returns the rows with these values; baselines have no options, so all match."""
    return [
        row
        for row in results.read("scale")["rows"]
        if all(row.get(key, value) == value for key, value in wanted.items())
    ]


def _find(model: str, rule: str, side: int, dtypes: tuple[str, str]) -> Row:
    roots, momenta = dtypes
    options = dict(max_dim=side, root_dtype=roots, accumulator_dtype=momenta)
    (row,) = _rows(model=model, optimizer=rule, **options)
    return row


def cost_of(row: Row) -> Cost:
    """Returns the calculated cost that a row has."""
    return Cost(row["state_bytes"], Flops(**row["flops"]), row["least_bytes"])


def _number(value: float) -> str:
    """Formats three digits, without an exponent if the value is large."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _gib(row: Row) -> str:
    return _number(row["state_bytes"] / 2**30)


def _each(function: Callable[[int], float]) -> str:
    """Formats a number for each interval."""
    return "; ".join(_number(function(interval)) for interval in INTERVALS)


def _bounds(cost: Cost, *precisions: str) -> Iterable[str]:
    """Formats the bounds on both devices, for each interval."""
    for device in DEVICES:
        bounds = (1e3 * cost.mean_bound(device, k, *precisions) for k in INTERVALS)
        yield "; ".join(map(_number, bounds))


def scale_models() -> Table:
    """Rows: models and optimizers, at the defaults."""
    table = []
    for model, name in MODELS.items():
        rows = {row["optimizer"]: row for row in _rows(model=model, **DEFAULTS)}
        for optimizer, words in OPTIMIZERS.items():
            row, cost = rows[optimizer], cost_of(rows[optimizer])
            flops = cost.mean_flops(INTERVAL)
            table.append(
                [
                    name,
                    _number(row["parameters"] / 1e6),
                    words,
                    _gib(row),
                    f"{row['state_bytes'] / rows['adamw']['state_bytes']:.2f}",
                    _number(flops / 1e12),
                    _number(flops / row["parameters"]),
                    _number(cost.mean_bytes(INTERVAL) / 1e9),
                    *(
                        _number(1e3 * cost.mean_bound(device, INTERVAL, precision))
                        for device in DEVICES
                        for precision in PRECISIONS
                    ),
                ]
            )
    header = [
        "model",
        "parameters, 10^6",
        "optimizer",
        "state, GiB",
        "over AdamW's",
        "TFLOP a step",
        "FLOP a parameter",
        "least GB a step",
        *(
            f"bound, ms, {device}, {words}"
            for device in DEVICES
            for words in PRECISIONS.values()
        ),
    ]
    return header, table


def _in_full() -> list[str]:
    """Returns the models that were calculated with all options."""
    found = {row["model"] for row in _rows(max_dim=1024, optimizer="series")}
    return [model for model in MODELS if model in found]


def scale_tiles() -> Table:
    """Rows: models, rules and tile sizes."""
    table = []
    for model, rule in itertools.product(_in_full(), RULES):
        own = _rows(model=model, optimizer=rule)
        for side in sorted({row["max_dim"] for row in own}):
            rows = [_find(model, rule, side, dtypes) for dtypes in DTYPES]
            cost = cost_of(rows[0])
            table.append(
                [
                    MODELS[model],
                    OPTIMIZERS[rule],
                    str(side),
                    *map(_gib, rows),
                    _each(lambda k, cost=cost: cost.mean_flops(k) / 1e12),
                    *_bounds(cost),
                ]
            )
    header = [
        "model",
        "optimizer",
        "largest side of a tile",
        *(f"state, GiB, {words}" for words in DTYPES.values()),
        f"TFLOP a step {AT_INTERVALS}",
        *(f"bound, ms, {device}, {AT_INTERVALS}" for device in DEVICES),
    ]
    return header, table


def scale_options() -> Table:
    """Rows: models, rules, precisions and dtypes, at the default tile size."""
    table = []
    for model, rule in itertools.product(_in_full(), RULES):
        for precisions, dtypes in itertools.product(PRODUCTS, (FLOAT32, BFLOAT16)):
            cost = cost_of(_find(model, rule, 256, dtypes))
            table.append(
                [
                    MODELS[model],
                    OPTIMIZERS[rule],
                    PRODUCTS[precisions],
                    DTYPES[dtypes],
                    _each(lambda k, cost=cost: cost.mean_bytes(k) / 1e9),
                    *_bounds(cost, *precisions),
                ]
            )
    header = [
        "model",
        "optimizer",
        "products",
        "state",
        f"least GB a step {AT_INTERVALS}",
        *(f"bound, ms, {device}, {AT_INTERVALS}" for device in DEVICES),
    ]
    return header, table
