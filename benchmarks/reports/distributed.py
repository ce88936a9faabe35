"""Makes the tables of docs/distributed.md."""

import collections
from typing import Any

from benchmarks.harness import results
from benchmarks.reports.rules import Table

MODELS = {
    "resnet50": "ResNet-50",
    "gpt2_small": "GPT-2 small",
    "gpt2_xl": "GPT-2 XL",
    "llama2_7b": "Llama 2 7B",
    "llama2_70b": "Llama 2 70B",
}
RULES = {
    "series": "the paper's",
    "whitening": "`Whitening`",
    "shampoo": "exact-root Shampoo",
}
WAYS = {  # of parameters that are divided; the first two at the tag lab-0.1
    "all-to-alls": "`param_specs`",
    "gathers": "without `param_specs`",
    "shards": "`Sharded`",
}


def _rows(kind: str) -> list[dict[str, Any]]:
    return [row for row in results.read("distributed")["rows"] if row["kind"] == kind]


def _mib(value: float) -> str:
    return f"{value / 2**20:.1f}"


def distributed() -> Table:
    """Rows: compiled updates."""
    rows = _rows("compiled")
    alone = {
        (row["model"], row["rule"]): row["cpu_seconds"]
        for row in rows
        if row["devices"] == 1
    }
    table = []
    for row in sorted(
        rows, key=lambda r: (r["model"], list(RULES).index(r["rule"]), r["devices"])
    ):
        one = alone.get((row["model"], row["rule"]))
        exchanged = [
            f"{operation} of {_mib(size)}" for operation, _, size in row["collectives"]
        ]
        table.append(
            [
                MODELS[row["model"]],
                RULES[row["rule"]],
                str(row["devices"]),
                _mib(row["state_bytes"]),
                f"{_mib(row['adamw_bytes'])}, {_mib(row['adamw_fsdp_bytes'])}",
                ", ".join(exchanged) or "none",
                f"{row['flops']['refresh'] / 1e9:.1f}",
                f"{row['less_by']:.2f}",
                str(row["decompositions"]),
                f"{row['cpu_seconds'] / one:.2f}" if one else "",
            ]
        )
    header = [
        "model",
        "rule",
        "devices",
        "state a device, MiB",
        "AdamW's replicated, by FSDP",
        "exchanged in a step, MiB",
        "refresh a device, GFLOP",
        "less by",
        "decompositions",
        "compile time over one device's",
    ]
    return header, table


def distributed_fsdp() -> Table:
    """Rows: compiled updates of divided parameters."""
    table = []
    for row in sorted(_rows("fsdp"), key=lambda r: (r["model"], r["way"])):
        counts = collections.Counter(operation for operation, *_ in row["collectives"])
        gathered = sum(size for *_, size in row["collectives"])
        # The rest of each result is the device's own.
        received = gathered * (row["devices"] - 1) / row["devices"]
        table.append(
            [
                MODELS[row["model"]],
                WAYS[row["way"]],
                ", ".join(f"{n} {name}" for name, n in sorted(counts.items())),
                *(
                    f"{_mib(size)} ({size / row['parameter_bytes']:.2f})"
                    for size in (gathered, received)
                ),
                _mib(row["state_bytes"]),
                _mib(row["temporary_bytes"]),
            ]
        )
    header = [
        "model",
        "",
        "collectives",
        "results of a step's collectives, MiB (over the parameters')",
        "of these received from others",
        "state a device, MiB",
        "temporary memory, MiB",
    ]
    return header, table


def distributed_gpu() -> Table:
    """Rows: updates compiled for one GPU, and for each of eight."""
    names = {"jorge": "series"}
    whole = {
        (row["model"], row["rule"]): row["state_bytes"]
        for row in _rows("compiled")
        if row["devices"] == 1
    }
    alone = [
        {**row, "rule": names.get(row["optimizer"], row["optimizer"]), "gpus": 1}
        for row in results.read("gpu_compile")["rows"]
    ]
    spread = results.read("gpu_spread")["rows"]
    models = {row["model"] for row in spread}
    rows = [r for r in alone if r["model"] in models and r["rule"] in RULES] + spread
    table = []
    for row in sorted(rows, key=_gpu_order):
        exchanged = [
            f"{operation} of {_mib(size)}"
            for operation, _, size in row.get("collectives", ())
        ]
        outside = sum(row["outside_of_graphs"].values())
        state = row.get("state_bytes", whole.get((row["model"], row["rule"])))
        table.append(
            [
                RULES[row["rule"]],
                f"{row['gpus']} {row['device']}" + _divided(row),
                "" if state is None else _mib(state),
                _mib(row["temporary_bytes"]),
                ", ".join(exchanged) or "none",
                f"{row['plain']['operations']}, {row['refresh']['operations']}",
                str(row["cuda_graphs"]),
                str(outside),
            ]
        )
    header = [
        "rule",
        "GPUs",
        "state a GPU, MiB",
        "temporary memory, MiB",
        "exchanged in a step, MiB",
        "operations, plain and refresh",
        "CUDA graphs",
        "operations outside of them",
    ]
    return header, table


def _gpu_order(row: dict[str, Any]) -> Any:
    rule = list(RULES).index(row["rule"])
    return rule, row["device"], row["gpus"], row.get("parameters", "") == "fsdp"


def _divided(row: dict[str, Any]) -> str:
    return ", FSDP" if row.get("parameters") == "fsdp" else ""


def distributed_time() -> Table:
    """Rows: numbers of devices."""
    rows = _rows("timed")
    table = [
        [
            str(row["devices"]),
            *(f"{1e3 * row['seconds'][rule]:.0f} ms" for rule in ("series", "shampoo")),
            f"{row['ratio']:.1f}",
        ]
        for row in sorted(rows, key=lambda r: r["devices"])
    ]
    header = ["devices", "Jorge", "exact-root Shampoo", "Shampoo's over Jorge's"]
    return header, table
