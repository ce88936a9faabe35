"""Reads compiled programs: what they launch, move and copy, and their CUDA graphs.

The program is XLA's text of a scheduled, optimized module; thunks are its dump of what
the host calls, one for each operation of the program, in the same order.
"""

import collections
import math
import re
from typing import NamedTuple

BYTES = {"f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "f64": 8, "pred": 1}
BYTES |= {"s8": 1, "u8": 1, "s64": 8, "u64": 8}
INSTRUCTION = re.compile(
    r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>\(.*?\)|\S+)"
    r" (?P<opcode>[\w\-]+)\((?P<operands>[^)]*)\)"
)
# These launch nothing.
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
CALLS = {"cublas": "matmuls", "cudnn": "convolutions", "cusolver": "cusolver_calls"}
KINDS = ("kernels", "matmuls", "convolutions", "copies", "conditionals")
KINDS = (*KINDS, "cusolver_calls", "other_calls")


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    shape: str
    opcode: str
    operands: list[str]
    root: bool
    line: str

    @property
    def kind(self) -> str | None:
        """One of KINDS; None if nothing is launched."""
        if self.opcode in FREE:
            return None
        if self.opcode == "custom-call":
            target = re.findall(r'custom_call_target="([^"]+)"', self.line)[0]
            return next((k for part, k in CALLS.items() if part in target), KINDS[-1])
        kinds = {"fusion": "kernels", "copy": "copies", "conditional": "conditionals"}
        return kinds.get(self.opcode, KINDS[-1])

    @property
    def op_name(self) -> str:
        """Where it comes from: the scopes and the primitive."""
        found = re.search(r'op_name="([^"]*)"', self.line)
        return found[1] if found else ""


class Module:
    """A program by computations; `entry` and the branches of its conditionals run."""

    def __init__(self, text: str):
        """Parses the result of ``compiled.as_text()``."""
        self.computations: dict[str, dict[str, Instruction]] = {}
        name = None
        for line in text.splitlines():
            head = re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line)
            if head:
                name = "entry" if head[1] else head[2]
                self.computations[name] = {}
            found = INSTRUCTION.match(line)
            if found and name is not None:
                one = Instruction(
                    found["name"],
                    found["shape"],
                    found["opcode"],
                    re.findall(r"%([\w.\-]+)", found["operands"]),
                    bool(found["root"]),
                    line,
                )
                self.computations[name][one.name] = one

    def launched(self, name: str = "entry") -> list[Instruction]:
        """Instructions that launch something, in order."""
        return [i for i in self.computations[name].values() if i.kind]

    def fused(self, one: Instruction) -> list[Instruction]:
        """Instructions that a kernel was fused from."""
        called = re.search(r"calls=%?([\w.\-]+)", one.line)
        return list(self.computations[called[1]].values()) if called else []

    def conditionals(self) -> list[list[str]]:
        """Names of the computations that each of the entry's conditionals has."""
        launched = self.launched()
        return [_branches_of(i) for i in launched if i.opcode == "conditional"]

    def branches(self) -> list[str]:
        """Names of the computations that the entry's conditionals choose from."""
        return [name for names in self.conditionals() for name in names]

    def count(self) -> dict[str, collections.Counter]:
        """Numbers of each kind, and bytes, of the entry and of the branches."""
        return {name: self._count(name) for name in ("entry", *self.branches())}

    def _count(self, name: str) -> collections.Counter:
        found = collections.Counter()
        for one in self.launched(name):
            found[one.kind] += 1
            found["traffic_bytes"] += self.traffic(self.computations[name], one)
            if "jorge/step" in one.op_name:
                found["precondition"] += 1
            if one.kind == "copies":
                size = size_of(one.shape)
                found["copied_bytes"] += size
                if self._is_of_roots(name, one):
                    found["root_copied_bytes"] += size
        return found

    def _is_of_roots(self, name: str, one: Instruction) -> bool:
        """Whether it copies a root, or what a refresh takes or returns."""
        source = self.computations[name][one.operands[0]]
        while source.opcode in ("get-tuple-element", "bitcast"):
            source = self.computations[name][source.operands[0]]
        if source.opcode == "parameter":
            return name != "entry" or "roots" in source.name
        launched = (i for own in _branches_of(source) for i in self.launched(own))
        return any(i.kind in ("matmuls", "cusolver_calls") for i in launched)

    def traffic(self, computation: dict[str, Instruction], one: Instruction) -> int:
        """Bytes of what an operation reads and writes: of slices, not of the whole."""
        if one.opcode == "conditional":
            return 0  # its branches are counted
        shapes = [computation[operand].shape for operand in one.operands]
        if one.opcode != "fusion":
            # Bytes in the result of a library's call are its workspace.
            results = re.sub(r"[su]8\[\d*\]", "", one.shape)
            return size_of(results) + sum(map(size_of, shapes))
        inner = {inside.name: inside for inside in self.fused(one)}
        read = sum(_read(inner, i) for i in inner.values() if i.opcode == "parameter")
        return read + sum(_written(inner, i) for i in inner.values() if i.root)


def _branches_of(one: Instruction) -> list[str]:
    """Names of the computations that a conditional chooses from."""
    names = re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", one.line)
    for several in re.findall(r"branch_computations=\{([^}]*)\}", one.line):
        names += [part.strip().lstrip("%") for part in several.split(",")]
    return names


def operations(found: collections.Counter) -> int:
    """Number of launched operations."""
    return sum(found[kind] for kind in KINDS)


# What computes each entry of its result from the entries of its operands at its place.
ELEMENTWISE = {"add", "multiply", "subtract", "divide", "select", "clamp", "convert"}
ELEMENTWISE |= {"maximum", "minimum", "negate", "abs", "and", "is-finite", "compare"}


def _read(inner: dict[str, Instruction], one: Instruction) -> int:
    """Bytes of a value inside of a fused computation that are needed.

    A kernel computes what it needs: of entries that are changed one by one and then
    sliced, only those of the slices are read.
    """
    slices = _slices(inner, one, {})
    whole = size_of(one.shape)
    if slices is None:
        return whole
    return min(whole, sum(size_of(inner[name].shape) for name in slices))


def _slices(
    inner: dict[str, Instruction],
    one: Instruction,
    known: dict[str, frozenset[str] | None],
) -> frozenset[str] | None:
    """Names of the slices that all uses of a value come down to; None if it is more."""
    if one.name in known:
        return known[one.name]
    found: frozenset[str] | None = frozenset()
    if one.root:
        found = None
    for user in inner.values():
        if found is None or one.name not in user.operands:
            continue
        if user.opcode in ("slice", "dynamic-slice", "gather"):
            found |= {user.name}
        elif user.opcode == "bitcast" or user.opcode in ELEMENTWISE:
            further = _slices(inner, user, known)
            found = None if further is None else found | further
        elif user.opcode != "dynamic-update-slice" or user.operands[0] != one.name:
            found = None
    known[one.name] = found
    return found


def _written(inner: dict[str, Instruction], one: Instruction) -> int:
    if one.opcode == "tuple":
        return sum(_written(inner, inner[operand]) for operand in one.operands)
    if one.opcode == "bitcast" and one.operands[0] in inner:
        return _written(inner, inner[one.operands[0]])
    if one.opcode == "dynamic-update-slice":  # in place
        return size_of(inner[one.operands[1]].shape)
    return size_of(one.shape)


def size_of(shape: str) -> int:
    """Bytes of an array, or of all arrays of a tuple."""
    total = 0
    for dtype, sizes in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", shape):
        sides = [int(size) for size in sizes.split(",") if size]
        total += BYTES.get(dtype, 4) * math.prod(sides)
    return total


def count(text: str) -> dict[str, collections.Counter]:
    """Counts operations of the entry and of the branches of conditionals."""
    return Module(text).count()


def plain_and_refresh(text: str) -> tuple[dict, dict | None]:
    """Counts what a plain step launches, and what a refresh step launches.

    Of a conditional, the branch with fewest operations keeps the roots, and the other
    one refreshes them.
    """
    module = Module(text)
    found = module.count()
    plain, refresh = [found["entry"]], [found["entry"]]
    for names in module.conditionals():
        branches = sorted((found[name] for name in names), key=operations)
        plain.append(branches[0])
        refresh.append(branches[-1])
    return _row(*plain), _row(*refresh) if module.conditionals() else None


def _row(*parts: collections.Counter) -> dict:
    total = sum(parts, collections.Counter())
    row = {kind: total[kind] for kind in KINDS}
    names = ("precondition", "copied_bytes", "root_copied_bytes", "traffic_bytes")
    return {
        **row,
        "operations": sum(row.values()),
        **{name: total[name] for name in names},
    }


class Thunk(NamedTuple):
    """One call of the host; `graph` is the number of its CUDA graph, if any."""

    kind: str
    name: str
    graph: int | None


def read_thunks(text: str) -> list[Thunk]:
    """Returns the calls of the host, without those of branches and loops."""
    found, number, parent = [], -1, ""
    for line in text.splitlines():
        thunk = re.match(r"( *)\d+: (k\w+)(?: *\[.*?\] *(\S*))?", line)
        if not thunk:
            continue
        depth, kind, name = len(thunk[1]), thunk[2], thunk[3] or ""
        if depth == 0:
            parent = kind
            if kind == "kCommandBuffer":
                number += 1
            else:
                found.append(Thunk(kind, name, None))
        elif depth == 4 and parent == "kCommandBuffer":
            found.append(Thunk(kind, name, number))
    return found


def graphs(thunks: str) -> list[tuple[str, int | None]]:
    """Returns the kind of each call, and the number of its CUDA graph, if any."""
    return [(thunk.kind, thunk.graph) for thunk in read_thunks(thunks)]


def thunks_of(module: Module, thunks: str) -> list[list[Thunk]]:
    """Returns the calls of each of the entry's operations: of a sort, several."""
    launched, found = module.launched(), read_thunks(thunks)
    calls, start = [], 0
    for one in launched:
        end = start + 1
        if any(inside.opcode == "sort" for inside in module.fused(one)):
            # Copies of what is sorted in place, a kernel, and those that go on with it.
            while end < len(found) and found[end - 1].kind == "kCopy":
                end += 1
            while end < len(found) and re.match(r"sort.*__\d+$", found[end].name):
                end += 1
        calls.append(found[start:end])
        start = end
    if start != len(found):
        number = len(found) - sum(len(own) - 1 for own in calls if own)
        raise ValueError(f"{len(launched)} operations, but {number} thunks.")
    return calls


def graph_counts(thunks: str) -> dict:
    """Counts CUDA graphs, and the operations outside of them."""
    found = graphs(thunks)
    outside = collections.Counter(kind for kind, graph in found if graph is None)
    return {
        "cuda_graphs": len({graph for _, graph in found} - {None}),
        "outside_of_graphs": dict(outside),
    }


def _is_optimizers(one: Instruction) -> bool:
    return "/optimizer/" in one.op_name


def optimizers_part(program_text: str, thunks: str) -> dict:
    """Counts the optimizer's operations in a training step, and where they are.

    They are those of the scope "optimizer", and kernels into which such a one is fused.
    """
    module = Module(program_text)
    calls = thunks_of(module, thunks)
    mine = [
        (one, own[0].graph)
        for one, own in zip(module.launched(), calls, strict=True)
        if any(map(_is_optimizers, (one, *module.fused(one))))
    ]
    numbers = collections.Counter(graph for _, graph in mine if graph is not None)
    largest = numbers.most_common(1)[0] if numbers else (None, 0)
    conditionals = [graph for one, graph in mine if one.opcode == "conditional"]
    return {
        "more_calls_of_sorts": sum(len(own) - 1 for own in calls),
        "optimizer_operations": len(mine),
        "of_these_in_one_graph": largest[1],
        "conditional_in_that_graph": all(graph == largest[0] for graph in conditionals)
        if conditionals
        else None,
        "optimizer_outside": dict(
            collections.Counter(
                re.sub(r"[.\d]+$", "", one.name)
                for one, graph in mine
                if graph != largest[0]
            )
        ),
    }
