"""Sorts the bytes that a compiled update moves by what they are moved for.

Question: which part of a plain update of ResNet-50 moves how many bytes, and by how
much more than the least is that?
Method: XLA's GPU compiler without a GPU, as in compile.py; each kernel, matmul and copy
of a plain step is assigned to one cause by what it reads, computes and writes. Rows of
other commits are kept, so that a change can be compared with what was there before.
Answer: docs/results/gpu.md, from benchmarks/results/gpu_causes.json.

    JAX_PLATFORMS=cpu python -m benchmarks.gpu.causes
"""

import collections
import functools
import sys

import jax

from benchmarks.cost import counts
from benchmarks.cost import updates as alone
from benchmarks.gpu import compile as gpu_compile
from benchmarks.gpu import programs, target
from benchmarks.harness import results

CAUSES = {
    "cut": "cut gradients into tiles",
    "momenta": "update momenta",
    "momenta_and_norms": "update momenta, with norms and products",
    "norms": "norms and products alone",
    "roots": "multiply by the roots",
    "parameters": "update parameters from tiles",
    "others": "parameters without tiles, copies, numbers",
}
MODELS = results.sized(("resnet50",), ("resnet18",))
DEVICE, LARGE = "A100", 4096  # of a kernel that handles stacks, bytes at least


def bytes_by_cause(text: str) -> dict[str, int]:
    """Returns the bytes of a plain step by the keys of CAUSES."""
    module = programs.Module(text)
    found = collections.Counter(dict.fromkeys(CAUSES, 0))
    for one in module.launched():
        entry = module.computations["entry"]
        found[cause_of(module, one)] += module.traffic(entry, one)
    plain, _ = programs.plain_and_refresh(text)
    # Branches that keep what there is.
    found["others"] += plain["traffic_bytes"] - sum(found.values())
    return dict(found)


def cause_of(module: programs.Module, one: programs.Instruction) -> str:
    """Returns a key of CAUSES."""
    if one.kind == "matmuls":
        return "roots"
    if one.kind != "kernels":
        return "others"
    inside = collections.Counter(inner.opcode for inner in module.fused(one))
    stacks = "[" in one.shape and programs.size_of(one.shape) >= LARGE
    updates = any(operand.startswith("params_") for operand in one.operands)
    if updates:
        # Tiles are sliced from a stack, or put in another order.
        joins = any(_is_stack(module, operand) for operand in one.operands)
        return "parameters" if joins else "others"
    if inside["reduce"]:
        writes = programs.size_of(one.shape) > 0.5 * _largest(module, one)
        return "momenta_and_norms" if writes else "norms"
    if not stacks:
        return "others"
    adds = inside["add"] + inside["subtract"]
    return "momenta" if adds else "cut"


def _is_stack(module: programs.Module, operand: str) -> bool:
    shape = module.computations["entry"][operand].shape
    sides = shape.partition("[")[2].partition("]")[0].split(",")
    return len(sides) == 3 and programs.size_of(shape) >= LARGE


def _largest(module: programs.Module, one: programs.Instruction) -> int:
    entry = module.computations["entry"]
    return max(programs.size_of(entry[operand].shape) for operand in one.operands)


def measure(model: str, name: str) -> dict:
    """Returns a row for an update."""
    optimizer, params = gpu_compile.optimizers()[name], alone.shapes.MODELS[model]()
    state = jax.eval_shape(optimizer.init, params)
    step = functools.partial(alone.update, optimizer)
    program = target.compile_for(DEVICE, step, (params, state, params), (0, 1))
    return row(model, name, program.text)


def row(model: str, name: str, text: str) -> dict:
    """Returns a row for a compiled update."""
    optimizer, params = gpu_compile.optimizers()[name], alone.shapes.MODELS[model]()
    state = jax.eval_shape(optimizer.init, params)
    least = gpu_compile.least_bytes(state, params)["plain"]
    plain, refresh = programs.plain_and_refresh(text)
    assert refresh is not None
    return {
        "model": model,
        "optimizer": name,
        "device": DEVICE,
        "least_bytes": least + counts.tree_bytes(params),
        "plain_bytes": plain["traffic_bytes"],
        "plain_operations": plain["operations"],
        "refresh_bytes": refresh["traffic_bytes"],
        "causes": bytes_by_cause(text),
    }


def main() -> None:
    """Compiles both rules and writes the JSON."""
    if why := target.why_not():
        sys.exit(f"Skipped. {why}")
    rows = [x for x in results.rows("gpu_causes") if x["commit"] != results.COMMIT]
    for model in MODELS:
        for name in ("jorge", "whitening"):
            rows.append(measure(model, name))
            print(rows[-1], flush=True)
            results.write("gpu_causes", rows)


if __name__ == "__main__":
    main()
