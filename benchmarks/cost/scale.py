"""Calculates what updates of models from ResNet-18 to a 70B transformer cost.

Question: how much state, how many operations and bytes, and how much time at least does
an update take on one device, by rule, tile size, interval and dtype, compared with
AdamW and Muon?
Method: shares.py calculates them from the shapes of the parameters; nothing is
allocated, compiled or timed. A row has the numbers of a plain step and of a refresh;
reports/scale.py takes means over an interval and bounds the time. The tests compare
with what gpu.compile found for the models that were compiled.
Answer: docs/results/scale.md, from benchmarks/results/scale.json.

    python -m benchmarks.cost.scale
"""

from typing import Any

import jax

from benchmarks.cost import shares
from benchmarks.harness import results
from jorge_optax import Tiling

BASELINES = ("sgd", "adamw", "muon")
RULES = ("series", "whitening")
SIDES = results.sized((128, 256, 512, 1024), (256,))
# Of roots and of momenta.
DTYPES = (("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16"))
MODELS = results.sized(tuple(shares.MODELS), ("resnet18", "llama2_70b"))
# Those that are calculated with all options; the others at the defaults.
IN_FULL = results.sized(("resnet50", "llama2_7b"), ())
DEFAULT = (256, *DTYPES[0])


def calculate(
    model: str,
    optimizer: str,
    max_dim: int = 256,
    root_dtype: str = "float32",
    accumulator_dtype: str = "float32",
) -> dict[str, Any]:
    """Returns a row; the options are those of rules."""
    params = shares.MODELS[model]()
    row = {
        "model": model,
        "optimizer": optimizer,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
    }
    if optimizer in shares.BASELINES:
        cost = shares.baseline(optimizer, params)
    else:
        row |= {
            "max_dim": max_dim,
            "root_dtype": root_dtype,
            "accumulator_dtype": accumulator_dtype,
        }
        cost = shares.calculate(
            params,
            rule=shares.RULES[optimizer],
            tiling=Tiling(max_dim),
            root_dtype=root_dtype,
            accumulator_dtype=accumulator_dtype,
        ).cost
    return {**row, **cost._asdict(), "flops": cost.flops._asdict()}


def main() -> None:
    """Calculates everything and writes the JSON."""
    rows = []
    for model in MODELS:
        rows += [calculate(model, name) for name in BASELINES]
        every = [(side, *dtypes) for side in SIDES for dtypes in DTYPES]
        options = every if model in IN_FULL else [DEFAULT]
        rows += [calculate(model, rule, *each) for rule in RULES for each in options]
        print(model, flush=True)
    results.write("scale", rows)


if __name__ == "__main__":
    main()
