"""Sorts the bytes that a compiled update moves by what they are moved for.

Question: which part of a plain update, and of a refresh, moves how many bytes, and by
how much more than the least is that?
Method: XLA's GPU compiler without a GPU, as in compile.py; each kernel, matmul and copy
of a plain step and of the branch that refreshes is assigned to one cause by what it
reads, computes and writes. Rows of other commits are kept, so that a change can be
compared with what was there before; rows of this one are not compiled again.
Answer: docs/results/gpu.md, from benchmarks/results/gpu_causes.json.

    JAX_PLATFORMS=cpu python -m benchmarks.gpu.causes
"""

import collections
import functools
import itertools
import re
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
REFRESH_CAUSES = {
    "products": "matrix products",
    "joins": "join gradients or sides into batches, and scale them",
    "between": "change entries between products",
    "numbers": "norms, traces and largest entries alone",
    "roots": "write new roots",
    "others": "copies and numbers",
}
MODELS = results.sized(
    ("resnet50", "deeplabv3_resnet50", "maskrcnn_resnet50_fpn"), ("resnet18",)
)
DEVICES = results.sized(("A100", "H100"), ("A100",))
LARGE = 4096  # of a kernel that handles stacks, bytes at least


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


def refresh_bytes_by_cause(text: str) -> dict[str, int]:
    """Returns the bytes of the branch that refreshes by keys of REFRESH_CAUSES."""
    module = programs.Module(text)
    found = collections.Counter(dict.fromkeys(REFRESH_CAUSES, 0))
    name = max(module.branches(), key=lambda name: module.count()[name]["matmuls"])
    branch = module.computations[name]
    written = _returned(branch)
    for one in module.launched(name):
        cause = refresh_cause_of(module, one)
        if one.kind == "kernels" and one.name in written:
            cause = "roots"
        found[cause] += module.traffic(branch, one)
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


def refresh_cause_of(module: programs.Module, one: programs.Instruction) -> str:
    """Returns a key of REFRESH_CAUSES, for what is no kernel that writes a root."""
    if one.kind == "matmuls":
        return "products"
    if one.kind != "kernels":
        return "others"
    inside = {inner.opcode for inner in module.fused(one)}
    # Sums of a kernel have at most one number for each row of a matrix.
    if re.findall(r"\[\d+,\d+,\d+\]", one.shape):
        return "joins" if {"concatenate", "pad"} & inside else "between"
    return "numbers" if "reduce" in inside else "others"


def _returned(branch: dict[str, programs.Instruction]) -> set[str]:
    """Names of the instructions whose results a computation returns."""
    (root,) = (one for one in branch.values() if one.root)
    names, found = [root.name], set()
    while names:
        one = branch[names.pop()]
        if one.kind is None:
            names += one.operands
        else:
            found.add(one.name)
    return found


def _is_stack(module: programs.Module, operand: str) -> bool:
    shape = module.computations["entry"][operand].shape
    sides = shape.partition("[")[2].partition("]")[0].split(",")
    return len(sides) == 3 and programs.size_of(shape) >= LARGE


def _largest(module: programs.Module, one: programs.Instruction) -> int:
    entry = module.computations["entry"]
    return max(programs.size_of(entry[operand].shape) for operand in one.operands)


def measure(model: str, name: str, device: str) -> dict:
    """Returns a row for an update."""
    optimizer, params = gpu_compile.optimizers()[name], alone.shapes.MODELS[model]()
    state = jax.eval_shape(optimizer.init, params)
    step = functools.partial(alone.update, optimizer)
    program = target.compile_for(device, step, (params, state, params), (0, 1))
    return row(model, name, device, program.text)


def row(model: str, name: str, device: str, text: str) -> dict:
    """Returns a row for a compiled update."""
    optimizer, params = gpu_compile.optimizers()[name], alone.shapes.MODELS[model]()
    state = jax.eval_shape(optimizer.init, params)
    least = gpu_compile.least_bytes(state, params)
    plain, refresh = programs.plain_and_refresh(text)
    assert refresh is not None
    return {
        "model": model,
        "optimizer": name,
        "device": device,
        "least_bytes": least["plain"] + counts.tree_bytes(params),
        "least_refresh_bytes": least["refresh"] + counts.tree_bytes(params),
        "plain_bytes": plain["traffic_bytes"],
        "plain_operations": plain["operations"],
        "refresh_bytes": refresh["traffic_bytes"],
        "refresh_operations": refresh["operations"],
        "causes": bytes_by_cause(text),
        "refresh_causes": refresh_bytes_by_cause(text),
    }


def main() -> None:
    """Compiles both rules for both devices and writes the JSON."""
    if why := target.why_not():
        sys.exit(f"Skipped. {why}")
    rows = results.rows("gpu_causes")
    names = ("commit", "model", "optimizer", "device")
    known = {tuple(row[name] for name in names) for row in rows}
    for which in itertools.product(MODELS, ("jorge", "whitening"), DEVICES):
        if (results.COMMIT, *which) not in known:
            rows.append(measure(*which))
            print(rows[-1], flush=True)
            results.write("gpu_causes", rows)


if __name__ == "__main__":
    main()
