"""Measures how compile time for a GPU grows with the number of layers.

Question: with 10 to 1000 equal layers of 64 x 64, how long does the update take to
compile for an A100, compared with AdamW?
Method: XLA's GPU compiler without a GPU, as in compile.py; SGD, AdamW and Jorge in
turn, two rounds (one round for 1000 layers).
Answer: docs/results/cost.md, from benchmarks/results/gpu_depth.json.

    JAX_PLATFORMS=cpu python -m benchmarks.gpu.depth
"""

import functools
import sys

import jax

from benchmarks.cost import updates
from benchmarks.gpu import target
from benchmarks.harness import results

DEPTHS = results.sized((10, 30, 100, 300, 1000), (2, 4))
SIDE, DEVICE = 64, "A100"


def compile_seconds(name: str, depth: int) -> float:
    """Compiles the update once; returns the seconds."""
    optimizer = updates.optimizers()[name]
    layer = jax.ShapeDtypeStruct((SIDE, SIDE), "float32")
    params = {f"layer{i}": layer for i in range(depth)}
    state = jax.eval_shape(optimizer.init, params)
    step = functools.partial(updates.update, optimizer)
    return target.compile_for(DEVICE, step, (params, state, params), (0, 1)).seconds


def main() -> None:
    """Compiles everything and writes the JSON."""
    if why := target.why_not():
        sys.exit(f"Skipped. {why}")
    rows = []
    for depth in DEPTHS:
        seconds = {name: [] for name in updates.optimizers()}
        for _ in range(2 if depth < 1000 else 1):
            for name, found in seconds.items():
                found.append(compile_seconds(name, depth))
        rows.append({"depth": depth, "device": DEVICE, "compile_seconds": seconds})
        print(rows[-1], flush=True)
        results.write("gpu_depth", rows)


if __name__ == "__main__":
    main()
