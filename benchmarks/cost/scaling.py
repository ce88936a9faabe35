"""Measures how the cost of Jorge's update grows.

Question: how do the time of a step, the operations of its matrix products, the bytes of
state and temporaries and the time to compile grow with the width of a layer, the number
of layers, the size of tiles and the interval between refreshes?
Method: the update alone, as in updates.py, of three families of parameters: one square
layer of width 256 to 8192; 10 to 1000 layers of 64 x 64; ResNet-50 in tiles of at most
64 to 2048 (steps only up to 512). One process on one core, which keeps its memory
(harness/machine.py); compilations and steps of SGD, AdamW and Jorge interleaved;
median, minimum and maximum. The first step touches fresh memory and is excluded. Counts
are exact and are compared with the formula: for a tile R x C, 2 R C (R + C) in every
step, and in a refresh 2 (m^2 n + 5 m^3) for its side m and the other side n. The
interval needs no runs: a mean step takes the time of a plain step and 1/interval of the
additional time of a refresh.
Answer: docs/results/cost.md, from benchmarks/results/scaling_study.json.

    python -m benchmarks.cost.scaling

After an interruption, the next call measures the cases that the JSON lacks.
"""

import functools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cost import counts, updates
from benchmarks.harness import machine, results
from benchmarks.problems import shapes
from jorge_optax import Tiling, jorge
from jorge_optax._stacks import plan_tree
from jorge_optax._thin_tiles import gram_multiplications

NAME = "scaling_study"
INTERVAL, TILE = 10, 256
WIDTHS = results.sized((256, 512, 1024, 2048, 4096, 8192), (64, 128))
DEPTHS = results.sized((10, 30, 100, 300, 1000), (2, 4))
SIDE = 64  # of the layers of all depths
TILES = results.sized((64, 128, 256, 512, 1024, 2048), (256, 512))
LARGEST_TIMED = results.sized(512, 256)
MODEL = results.sized(50, 18)  # layers of the ResNet in tiles
ROUNDS, STEPS = results.sized((2, 21), (1, 12))
DEPTH_ROUNDS = results.sized(5, 1)


class Case(NamedTuple):
    """Parameters whose update is measured.

    Attributes:
      axis: what grows, "width", "depth" or "tile".
      value: how large it is.
      rounds: number of compilations of each optimizer.
      steps: number of steps of each, every tenth with a refresh; 0 for none.
    """

    axis: str
    value: int
    rounds: int = ROUNDS
    steps: int = STEPS

    @property
    def tiling(self) -> Tiling:
        """Tiling of Jorge."""
        return Tiling(self.value if self.axis == "tile" else TILE)

    @property
    def params(self) -> dict[str, Any]:
        """Shapes of the parameters."""
        if self.axis == "tile":
            return shapes.resnet(MODEL)
        wide = self.axis == "width"
        layer = jax.ShapeDtypeStruct((self.value if wide else SIDE,) * 2, jnp.float32)
        return {f"layer{i:04}": layer for i in range(1 if wide else self.value)}


def cases() -> list[Case]:
    """Returns all cases; the largest have fewer steps."""
    few_steps = min(STEPS, 12)
    return [
        *(Case("width", w, steps=STEPS if w < 4096 else few_steps) for w in WIDTHS),
        *(Case("depth", d, rounds=DEPTH_ROUNDS) for d in DEPTHS),
        *(Case("tile", t, steps=STEPS if t <= LARGEST_TIMED else 0) for t in TILES),
    ]


def optimizers(tiling: Tiling) -> dict[str, Any]:
    """Returns the optimizers of updates.py, Jorge with a tiling."""
    own = jorge(0.1, 0.9, 1e-3, update_interval=INTERVAL, tiling=tiling)
    return {**updates.optimizers(), "jorge": own}


def formula_flops(params: Any, tiling: Tiling) -> counts.Flops:
    """Returns the operations if every side is refreshed from its Gram matrix."""
    refresh = 0
    for n, rows, columns in plan_tree(params, tiling).stacks.values():
        for m, other in ((rows, columns), (columns, rows)):
            refresh += 2 * n * gram_multiplications(m, other)
    return counts.Flops(counts.least_flops(params, tiling).plain, refresh)


def measure(case: Case) -> list[dict[str, Any]]:
    """Returns a row for each optimizer."""
    params = case.params
    lower, compile_, compiled = time_compilations(case)
    seconds = time_steps(case, compiled)
    rows = []
    for name, optimizer in optimizers(case.tiling).items():
        state = jax.eval_shape(optimizer.init, params)
        flops = counts.matmul_flops(optimizer.update, params, state, params)
        row = {
            "axis": case.axis,
            "value": case.value,
            "optimizer": name,
            "rounds": case.rounds,
            "steps": case.steps,
            "lower_seconds": updates.spread(lower[name]),
            "compile_seconds": updates.spread(compile_[name]),
            "compile_over_adamw": updates.spread(
                np.divide(compile_[name], compile_["adamw"])
            ),
            "matmul_flops": flops._asdict(),
            "parameter_bytes": counts.tree_bytes(params),
            "state_bytes": counts.tree_bytes(state),
            "temporary_bytes": compiled[name].memory_analysis().temp_size_in_bytes,
            "step_seconds": {
                kind: updates.spread(values)
                for kind, values in seconds[name].items()
                if values
            },
        }
        if name == "jorge":
            stacks = plan_tree(params, case.tiling).stacks.values()
            row |= {
                "stacks": len(stacks),
                "tiles": sum(n for n, _, _ in stacks),
                "formula_flops": formula_flops(params, case.tiling)._asdict(),
                "least_flops": counts.least_flops(params, case.tiling)._asdict(),
            }
        rows.append(row)
    return rows


def time_compilations(case: Case) -> tuple[dict, dict, dict]:
    """Returns seconds to lower and to compile in each round, and the programs."""
    params = case.params
    lower, compile_, compiled = {}, {}, {}
    for _ in range(case.rounds):
        jax.clear_caches()
        for name, optimizer in optimizers(case.tiling).items():
            state = jax.eval_shape(optimizer.init, params)
            step = functools.partial(updates.update, optimizer)
            structs = params, state, params
            compiled[name], *both = updates.compile_timed(step, structs, (0, 1))
            lower.setdefault(name, []).append(both[0])
            compile_.setdefault(name, []).append(both[1])
    return lower, compile_, compiled


def time_steps(case: Case, compiled: dict) -> dict[str, dict]:
    """Times steps in turn; returns seconds of plain steps and of refresh steps."""
    params = case.params
    seconds = {name: {"plain": [], "refresh": []} for name in compiled}
    if not case.steps:
        return seconds
    grads = updates.random_gradients(params)
    live = {
        name: updates.start(optimizer, params)
        for name, optimizer in optimizers(case.tiling).items()
    }
    jax.block_until_ready((grads, live))
    for step in range(case.steps):
        for name, run in compiled.items():
            start = time.perf_counter()
            live[name] = jax.block_until_ready(run(*live[name], grads))
            taken = time.perf_counter() - start
            refreshes = name == "jorge" and step % INTERVAL == 0
            if step:
                seconds[name]["refresh" if refreshes else "plain"].append(taken)
    return seconds


def main() -> None:
    """Measures all cases that the JSON lacks."""
    held = {(row["axis"], row["value"]) for row in results.rows(NAME)}
    todo = [case for case in cases() if (case.axis, case.value) not in held]
    if todo:  # the first compilation of a process takes longer
        time_compilations(Case("width", 8, rounds=1))
    for case in todo:
        rows = measure(case)
        with results.lock():
            all_rows = [*results.rows(NAME), *rows]
            results.write(NAME, all_rows, seeds=[0], interval=INTERVAL, tile=TILE)
        for row in rows:
            medians = {k: v["median"] for k, v in row["step_seconds"].items()}
            ratio = row["compile_over_adamw"]["median"]
            what = (case.axis, case.value, row["optimizer"])
            print(*what, f"compile / AdamW's {ratio:.2f}", medians, flush=True)


if __name__ == "__main__":
    machine.steady()
    main()
