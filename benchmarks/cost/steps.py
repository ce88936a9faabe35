"""Times whole training steps with each optimizer, as in the paper's first table.

Question: how long is a training step with SGD, AdamW, Jorge, Shampoo with exact roots,
Muon and PSGD-Kron, how much of it is the optimizer, and how long does it compile?
Method: the examples' ResNet-50, DeepLabv3 and Mask R-CNN on random images, and the
optimizer alone on the parameters of all three. One process on one core, which keeps its
memory (harness/machine.py). After a first step that is not timed, in each round every
optimizer takes a plain step and, if it has roots, one with a refresh; every other round
runs in reverse order. The cost at interval k is plain + (refresh - plain) / k, from the
medians. Compilations are interleaved, too. FLOPs of matrix products and convolutions
are counted on the traced program.
Answer: docs/results/cost.md, from benchmarks/results/step_cost.json.

    python -m benchmarks.cost.steps [PART ...]
"""

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from benchmarks.cost import contenders, counts, training_steps, updates
from benchmarks.harness import machine, results
from benchmarks.problems import shapes


class Part(NamedTuple):
    """A training step, or an update alone, that is measured.

    Attributes:
      model: name of the model.
      batch: number of images; 0 for the update alone.
      size: pixels of a side.
      rounds: number of rounds of steps.
      compilations: number for SGD, AdamW and Jorge; the others are compiled once.
      leave_out: optimizers that are not measured here.
    """

    model: str
    batch: int
    size: int
    rounds: int
    compilations: int
    leave_out: tuple[str, ...] = ()


PARTS = results.sized(
    {
        "resnet50": Part("resnet50", 64, 224, 2, 3),
        "deeplabv3": Part("deeplabv3_resnet50", 2, 256, 2, 2),
        "maskrcnn": Part(
            "maskrcnn_resnet50_fpn", 2, 256, 3, 1, ("shampoo", "muon", "psgd")
        ),
        "update-resnet50": Part("resnet50", 0, 0, 5, 4),
        "update-deeplabv3": Part("deeplabv3_resnet50", 0, 0, 4, 2),
        "update-maskrcnn": Part("maskrcnn_resnet50_fpn", 0, 0, 4, 2),
    },
    {"update-resnet18": Part("resnet18", 0, 0, 2, 1, ("shampoo", "psgd"))},
)


class Program(NamedTuple):
    """A function to compile, the shapes of its arguments, and how to start it."""

    function: Callable[..., Any]
    structs: tuple[Any, ...]
    start: Callable[[], tuple[Any, Any]]  # the state, and the constant arguments


def program(part: Part, optimizer: optax.GradientTransformation) -> Program:
    """Returns the program of a part: a training step, or the update alone."""
    if part.batch:
        step = training_steps.make(
            part.model, optimizer, batch=part.batch, size=part.size
        )
        return Program(
            step.function,
            (step.state, step.batch),
            lambda: (
                training_steps.start(part.model, optimizer),
                training_steps.random_batch(part.model, step.batch),
            ),
        )

    def update(carried: Any, grads: Any) -> tuple[Any, Any]:
        return updates.update(optimizer, *carried, grads), ()

    params = shapes.MODELS[part.model]()
    state = jax.eval_shape(optimizer.init, params)

    return Program(
        update,
        ((params, state), params),
        lambda: (updates.start(optimizer, params), updates.random_gradients(params)),
    )


def compile_all(part: Part, programs: dict[str, Program]) -> tuple[dict, dict]:
    """Returns the compiled programs and the seconds to lower and compile each."""
    compiled, seconds = {}, {name: [] for name in programs}
    for turn in range(part.compilations):
        jax.clear_caches()
        for name, own in programs.items():
            if turn and name not in ("sgd", "adamw", "jorge"):
                continue
            compiled[name], *both = updates.compile_timed(own.function, own.structs, 0)
            seconds[name].append(both)
            print(part.model, name, "compiled", *seconds[name][-1], flush=True)
    return compiled, seconds


def time_all(part: Part, programs: dict[str, Program], compiled: dict) -> dict:
    """Returns the seconds of all steps, by optimizer and kind."""
    seconds = {name: {kind: [] for kind in _kinds(name)} for name in programs}
    live = {name: own.start() for name, own in programs.items()}
    for turn in range(1 + part.rounds):
        for name in list(programs)[:: -1 if turn % 2 else 1]:
            carried, rest = live.pop(name)
            # The first step, which refreshes, touches fresh memory: it is not timed.
            for kind in _kinds(name) if turn else (None,):
                start = time.perf_counter()
                carried, _ = jax.block_until_ready(compiled[name](carried, rest))
                if kind:
                    seconds[name][kind].append(time.perf_counter() - start)
            live[name] = carried, rest
        print(part.model, "round", turn, flush=True)
    return seconds


def _kinds(name: str) -> tuple[str, ...]:
    """Of the steps of a round: 1 and 2, 3 and 4, ..., of which the even refresh."""
    return ("plain", "refresh") if name in contenders.WITH_ROOTS else ("plain",)


def measure(label: str, part: Part) -> list[dict]:
    """Returns a row for each optimizer."""
    chosen = {
        name: optimizer
        for name, optimizer in contenders.contenders().items()
        if name not in part.leave_out
    }
    programs = {name: program(part, optimizer) for name, optimizer in chosen.items()}
    compiled, seconds = compile_all(part, programs)
    steps = time_all(part, programs, compiled)
    rows = []
    for name, own in programs.items():
        found = counts.matmul_flops(own.function, *own.structs)
        memory = compiled[name].memory_analysis()
        rows.append(
            {
                "part": label,
                **{key: getattr(part, key) for key in ("model", "batch", "size")},
                "optimizer": name,
                "flops": found._asdict(),
                "state_bytes": counts.tree_bytes(_optimizer_state(part, own)),
                "temporary_bytes": memory.temp_size_in_bytes,
                "lower_and_compile_seconds": seconds[name],
                "step_seconds": steps[name],
            }
        )
    return rows


def _optimizer_state(part: Part, own: Program) -> Any:
    carried = own.structs[0]
    return carried.opt_state if part.batch else carried[1]


def main() -> None:
    """Measures the named parts, or all that the JSON lacks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    arguments = parser.parse_args()
    done = {row["part"] for row in results.rows("step_cost")}
    names = arguments.parts or [name for name in PARTS if name not in done]
    for name in names:
        rows = measure(name, PARTS[name])
        rows += [row for row in results.rows("step_cost") if row["part"] != name]
        rows = [row for part in PARTS for row in rows if row["part"] == part]
        results.write("step_cost", rows, seeds=[0])


if __name__ == "__main__":
    machine.steady()
    main()
