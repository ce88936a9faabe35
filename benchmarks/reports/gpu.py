"""Makes the tables of what was compiled for GPUs, from benchmarks/gpu/compile.py."""

from collections.abc import Iterable

from benchmarks.gpu.target import DEVICES, bound_seconds
from benchmarks.harness import results
from benchmarks.reports.rules import Table

# Kinds of thunks in words.
OUTSIDE = {
    "kConvolution": "convolutions",
    "kCustomKernel": "kernels",
    "kCublasLtMatmul": "matmuls",
    "kCopy": "copies",
    "kConditional": "the conditional",  # there is one
    "kWhile": "the loop",
}
# Columns that the tables of updates and of whole steps have in common.
LAUNCHED = (
    *("for", "model", "optimizer"),
    "operations of a plain step (kernels, matmuls, copies)",
    "of a refresh step",
)
MOVED = ("copied in a plain step (of roots)", "cusolver calls", "CUDA graphs")
ROOM_AND_TIME = ("temporary", "compile")
RULES = ("jorge", "whitening")
OPTIMIZERS = ("sgd", "adamw", *RULES, "shampoo")
MOST_TIMES = 2.0  # the least bytes, of a plain update
# Of the operations of a step, by the optimizer at an interval of 50.
SHARES = {"resnet50": 0.02, "deeplabv3_resnet50": 0.05, "maskrcnn_resnet50_fpn": 0.05}


def gpu_compile() -> Table:
    """Operations of the update alone."""
    table = []
    for row in _rows("gpu_compile"):
        made = row["plain"]["precondition"]
        each = made / row["stacks"] if row["stacks"] else None
        table.append(
            [
                *_launched(row),
                "" if each is None else f"{each:.1f}",
                *_moved_and_called(row),
                *_room_and_time(row),
            ]
        )
    return [*LAUNCHED, "to precondition, per stack", *MOVED, *ROOM_AND_TIME], table


def gpu_steps() -> Table:
    """Operations of whole training steps."""
    table = []
    for row in _rows("gpu_steps"):
        inside = f"{row['of_these_in_one_graph']} of {row['optimizer_operations']}"
        if row["conditional_in_that_graph"] is not None:
            also = "with" if row["conditional_in_that_graph"] else "without"
            inside += f", {also} the conditional"
        table.append(
            [
                *_launched(row),
                str(row["plain"]["convolutions"]),
                *_moved_and_called(row),
                inside,
                *_room_and_time(row),
            ]
        )
    more = "cuDNN calls", "optimizer's operations in one graph"
    return [*LAUNCHED, more[0], *MOVED, more[1], *ROOM_AND_TIME], table


def gpu_bounds() -> Table:
    """Operations, bytes, and the lower bound of the time."""
    table = []
    for file, part in (("gpu_compile", "update"), ("gpu_steps", "whole step")):
        rows = {tuple(_names(row)): row for row in _rows(file)}
        for (device, model, name), row in rows.items():
            if device != "A100":
                continue
            both = [row, rows["H100", model, name]]
            flops = row["flops"] if part == "update" else row["optimizer_flops"]
            passes = row.get("model_flops", 0)
            total = {"plain": passes + flops["plain"]}
            if row["refresh"]:
                total["refresh"] = total["plain"] + flops["refresh"]
            least, bytes_ = row["least_bytes"], _traffic(row)
            bounds = [each["bound_seconds"] for each in both]
            busy = [_at_full_bandwidth(each) for each in both]
            table.append(
                [
                    part,
                    model,
                    name,
                    _both(total, total, 1e-9, 0),
                    _both(total, least, 1e-9, 2),
                    _both(total, bytes_, 1e-9, 2),
                    *(_both(total, seconds, 1e3, 2) for seconds in bounds + busy),
                ]
            )
    header = [
        "",
        "model",
        "optimizer",
        "GFLOP",
        "least GB",
        "GB as compiled",
        "bound, not a timing: A100, ms",
        "H100, ms",
        "GB as compiled at full bandwidth, not a timing: A100, ms",
        "H100, ms",
    ]
    return header, table


def gpu_shares() -> Table:
    """Share of the optimizer in a step, with a refresh at every 50th."""
    interval = results.read("gpu_steps")["provenance"]["update_interval"]
    table = []
    for row in _rows("gpu_steps"):
        flops, model = row["optimizer_flops"], row["model_flops"]
        if row["device"] != "A100" or row["optimizer"] not in RULES:
            continue
        mine = flops["plain"] + flops["refresh"] / interval
        share, most = mine / (model + mine), SHARES[row["model"]]
        table.append(
            [
                row["model"],
                f"{row['batch']} at {row['size']}",
                row["optimizer"],
                f"{model / 1e9:.0f}",
                f"{mine / 1e9:.1f}",
                f"{share:.2%}",
                f"at most {most:.0%}: {'met' if share <= most else 'missed'}",
                *(f"{_of_bound(d, mine, model):.1%}" for d in ("A100", "H100")),
                *(
                    f"{_of_bound(d, mine - flops['plain'], model, flops['plain']):.1%}"
                    for d in ("A100", "H100")
                ),
            ]
        )
    header = [
        "model",
        "batch",
        "optimizer",
        "forward and backward, GFLOP",
        f"optimizer, GFLOP a step at interval {interval}",
        "share",
        "aim",
        "share of the bound on time, A100",
        "H100",
        "the same with roots applied in TF32, A100",
        "H100",
    ]
    return header, table


def gpu_aims() -> Table:
    """Aims for Jorge with either rule, and what was found."""
    updates, steps = (
        [row for row in results.read(name)["rows"] if row["optimizer"] in RULES]
        for name in ("gpu_compile", "gpu_steps")
    )
    sgd = {
        (row["device"], row["model"]): row["plain"]["operations"]
        for row in results.read("gpu_compile")["rows"]
        if row["optimizer"] == "sgd"
    }
    resnet = [row for row in updates if row["model"] == "resnet50"]
    over = max(
        row["plain"]["operations"] / sgd[row["device"], row["model"]] for row in resnet
    )
    cusolver = max(row["refresh"]["cusolver_calls"] for row in updates + steps)
    each = max(row["plain"]["precondition"] / row["stacks"] for row in updates)
    each_whole = max(row["plain"]["precondition"] / row["stacks"] for row in steps)
    copied = max(row["plain"]["root_copied_bytes"] for row in updates)
    copied_whole = max(row["plain"]["root_copied_bytes"] for row in steps)
    moved = max(
        row["plain"]["traffic_bytes"] / row["least_bytes"]["plain"] for row in updates
    )
    graphs = sum(_is_one_graph(row) for row in updates)
    inside = [
        row["of_these_in_one_graph"] / row["optimizer_operations"] for row in steps
    ]
    whole = sum(share == 1 for share in inside)
    aims = [
        ("cusolver calls of an update or a step: 0", str(cusolver), cusolver == 0),
        (
            "the update alone is one CUDA graph",
            f"{graphs} of {len(updates)}",
            graphs == len(updates),
        ),
        (
            "in a whole step the update is in one CUDA graph",
            f"{whole} of {len(steps)}; {min(inside):.0%} to {max(inside):.0%} of its "
            "operations",
            whole == len(steps),
        ),
        (
            "at most 4 operations to precondition, per stack and plain step",
            f"{each:.1f} alone, {each_whole:.1f} in a whole step",
            max(each, each_whole) <= 4,
        ),
        (
            "no copy of roots in a plain step",
            f"{copied} B alone, {copied_whole} B in a whole step",
            copied == copied_whole == 0,
        ),
        (
            "a plain update of ResNet-50: at most 3 times SGD's operations",
            f"{over:.2f} times",
            over <= 3,
        ),
        (
            f"a plain update: at most {MOST_TIMES} times the least bytes",
            f"{moved:.2f} times",
            moved <= MOST_TIMES,
        ),
    ]
    table = [[aim, found, "met" if met else "missed"] for aim, found, met in aims]
    return ["aim", "found, at worst", ""], table


def _rows(file: str) -> list[dict]:
    """Returns rows by device, model and optimizer, in whatever order they were made."""
    rows = results.read(file)["rows"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    orders = (list(DEVICES), models, OPTIMIZERS)

    def place(row: dict) -> list[int]:
        return [own.index(x) for own, x in zip(orders, _names(row), strict=True)]

    return sorted(rows, key=place)


def _names(row: dict) -> list[str]:
    return [row["device"], row["model"], row["optimizer"]]


def _launched(row: dict) -> list[str]:
    return [*_names(row), _operations(row["plain"]), _operations(row["refresh"])]


def _moved_and_called(row: dict) -> list[str]:
    calls = (row["refresh"] or row["plain"])["cusolver_calls"]
    return [_copied(row["plain"]), str(calls), _graphs(row)]


def _room_and_time(row: dict) -> list[str]:
    temporary = f"{row['temporary_bytes'] / 1e6:.0f} MB"
    return [temporary, f"{row['compile_seconds']:.0f} s"]


def _operations(found: dict | None) -> str:
    if found is None:
        return ""
    parts = ", ".join(str(found[kind]) for kind in ("kernels", "matmuls", "copies"))
    return f"{found['operations']} ({parts})"


def _copied(found: dict) -> str:
    return f"{_size(found['copied_bytes'])} ({_size(found['root_copied_bytes'])})"


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size} B"


def _is_one_graph(row: dict) -> bool:
    return row["cuda_graphs"] == 1 and not row["outside_of_graphs"]


def _graphs(row: dict) -> str:
    outside = row["outside_of_graphs"]
    if not outside:
        return str(row["cuda_graphs"])
    parts = [
        f"{number} {OUTSIDE.get(kind, kind)}".replace("1 the ", "the ")
        for kind, number in sorted(outside.items(), key=lambda item: -item[1])
    ]
    return f"{row['cuda_graphs']}; outside: {', '.join(parts)}"


def _traffic(row: dict) -> dict[str, int]:
    kinds = ("plain", "refresh") if row["refresh"] else ("plain",)
    return {kind: row[kind]["traffic_bytes"] for kind in kinds}


def _at_full_bandwidth(row: dict) -> dict[str, float]:
    device = row["device"]
    return {k: bound_seconds(device, bytes_=b) for k, b in _traffic(row).items()}


def _both(kinds: Iterable[str], values: dict, factor: float, digits: int) -> str:
    plain, *refresh = (f"{factor * values[kind]:.{digits}f}" for kind in kinds)
    return plain + "".join(f", refresh {text}" for text in refresh)


def _of_bound(device: str, mine: float, model: float, tf32: float = 0) -> float:
    """Share of the optimizer; ``mine`` are its operations in float32."""
    whole = bound_seconds(device, float32=mine, tf32=model + tf32)
    return bound_seconds(device, float32=mine, tf32=tf32) / whole
