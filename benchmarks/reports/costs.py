"""Makes the tables of training steps, updates, memory, and the summary."""

from typing import Any

import numpy as np

from benchmarks.harness import results
from benchmarks.reports import compilation, workloads
from benchmarks.reports.rules import Table, mean_and_seeds, steps_to_target
from examples.language_model import report
from examples.shared import compare

Row = dict[str, Any]

NAMES = {
    "sgd": "SGD",
    "adamw": "AdamW",
    "jorge": "Jorge",
    "whitening": "Jorge, whitening",
    "shampoo": "Shampoo, exact roots",
    "muon": "Muon",
    "psgd": "PSGD-Kron",
}
PSGD_SHARE = 0.03  # share of PSGD-Kron's steps that refresh, in the long run
INTERVALS = {  # the paper's, and 50
    "resnet50": (2, 50),
    "deeplabv3_resnet50": (4, 50),
    "maskrcnn_resnet50_fpn": (8, 50),
}


def steps() -> Table:
    """Whole training steps; rows: models and optimizers."""
    alone = {own["sgd"]["model"]: own for own in _parts(batch=False)}
    table = []
    for own in _parts(batch=True):
        sgd, adamw = own["sgd"], own["adamw"]
        for name, row in own.items():
            intervals = INTERVALS[row["model"]]
            update = alone[row["model"]]
            table.append(
                [
                    f"{row['model']}, batch {row['batch']}, {row['size']} px",
                    name,
                    _spread(row["step_seconds"]["plain"], 1, "s"),
                    _spread(_refreshes(row), 1, "s"),
                    *(f"{_amortised(row, k) / _plain(sgd):.2f}" for k in intervals),
                    *(
                        f"{_by_parts(sgd, update, name, k):.2f}"
                        if name in update
                        else "not measured"
                        for k in intervals
                    ),
                    f"{_compile(row):.1f} s",
                    f"{_compile_over(row, adamw):.2f}",
                ]
            )
    header = ["model", "optimizer", "plain step", "refresh step"]
    header += ["over SGD's, paper's interval", "at 50"]
    header += ["by parts, paper's interval", "at 50", "lower and compile"]
    return [*header, "over AdamW's"], table


def _by_parts(sgd: Row, update: dict[str, Row], name: str, interval: int) -> float:
    """Ratio of a step to SGD's, from SGD's step and the updates alone of both."""
    more = _amortised(update[name], interval) - _plain(update["sgd"])
    return 1 + more / _plain(sgd)


def updates() -> Table:
    """The update alone; rows: models and optimizers."""
    table = []
    for own in _parts(batch=False):
        adamw, jorge = own["adamw"], own["jorge"]
        for name, row in own.items():
            flops = row["flops"]
            table.append(
                [
                    row["model"],
                    name,
                    _spread(row["step_seconds"]["plain"], 0, "ms"),
                    _spread(_refreshes(row), 0, "ms"),
                    *(
                        f"{_amortised(row, k) / _amortised(jorge, k):.2f}"
                        for k in INTERVALS[row["model"]]
                    ),
                    f"{flops['plain'] / 1e9:.0f} + {flops['refresh'] / 1e9:.0f}",
                    f"{row['state_bytes'] / 1e6:.0f} MB",
                    f"{_compile(row):.1f} s",
                    f"{_compile_over(row, adamw):.2f}",
                ]
            )
    header = [
        "model",
        "optimizer",
        "plain",
        "refresh",
        "over Jorge's, paper's interval",
    ]
    header += ["at 50", "matmul GFLOP, plain + refresh", "state"]
    return [*header, "lower and compile", "over AdamW's"], table


def at_a_glance() -> Table:
    """ResNet-50 at the paper's batch, refreshed at every 50th step; for the README."""
    interval = 50
    step = next(p for p in _parts(batch=True) if _is_resnet(p))
    update = next(p for p in _parts(batch=False) if _is_resnet(p))
    launched = {
        row["optimizer"]: row
        for row in results.read("gpu_compile")["rows"]
        if (row["model"], row["device"]) == ("resnet50", "A100")
    }
    passes = step["sgd"]["flops"]["plain"]
    adamw = update["adamw"]
    compiled = compilation.over_adamw("resnet50")
    table = []
    for name, title in NAMES.items():
        if name == "whitening":
            table.append(_whitening(launched[name], passes, interval))
            continue
        if name not in update:
            continue  # not measured yet
        row, gpu = update[name], launched.get(name)
        flops = _mean_flops(row, interval)
        table.append(
            [
                "Jorge, paper's rule" if name == "jorge" else title,
                f"{_by_parts(step['sgd'], update, name, interval):.2f}",
                f"{flops / (passes + flops):.1%}",
                f"{row['state_bytes'] / adamw['state_bytes']:.2f}",
                f"{compiled.get(name) or _compile_over(row, adamw):.1f}",
                str(gpu["plain"]["operations"]) if gpu else "not compiled",
                _decompositions(gpu),
            ]
        )
    header = ["", "step on one CPU core over SGD's", "its share of the step's FLOPs"]
    header += ["state over AdamW's", "compiling the update over AdamW's"]
    return [*header, "operations on an A100, plain update", "decompositions"], table


def _whitening(gpu: Row, passes: int, interval: int) -> list[str]:
    """The whitening rule on ResNet-50, whose update has only been counted and compiled.

    Args:
      gpu: Its row of what was compiled for a GPU.
      passes: Operations of the forward and the backward pass.
      interval: Steps between refreshes.
    """
    key = {"kind": "bytes", "variant": "whitening", "model": "resnet50"}
    state = next(r for r in results.rows("memory_study") if key.items() <= r.items())
    flops = amortised(**gpu["flops"], interval=interval)
    return [
        NAMES["whitening"],
        "not timed",
        f"{flops / (passes + flops):.1%}",
        f"{state['over_adamw']:.2f}",
        f"{compilation.over_adamw('resnet50')['whitening']:.1f}",
        str(gpu["plain"]["operations"]),
        _decompositions(gpu),
    ]


def _is_resnet(part: dict[str, Row]) -> bool:
    return part["sgd"]["model"] == "resnet50"


def _decompositions(gpu: Row | None) -> str:
    if gpu is None:
        return ""
    calls = (gpu["refresh"] or gpu["plain"])["cusolver_calls"]
    return f"{calls} a refresh" if calls else "none"


def memory() -> Table:
    """Bytes of state over AdamW's; rows: sets of options; columns: models."""
    rows = [r for r in results.read("memory_study")["rows"] if r["kind"] == "bytes"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    table = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = {row["model"]: row for row in rows if row["variant"] == variant}
        table.append(
            [
                variant,
                f"{own['resnet50']['bytes'] / 1e6:.0f} MB",
                *(f"{own[model]['over_adamw']:.3f}" for model in models),
            ]
        )
    return ["state over AdamW's", "ResNet-50", *models], table


def memory_runs() -> Table:
    """Quality at the end; rows: sets of options; columns: problems."""
    rows = [r for r in results.read("memory_study")["rows"] if r["kind"] == "run"]
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    table = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        cells = []
        for problem in problems:
            finals = [
                row["final"]
                for row in rows
                if (row["variant"], row["problem"]) == (variant, problem)
            ]
            cells.append(mean_and_seeds(finals, 4) if finals else "not run")
        table.append([variant, *cells])
    header = [f"{p}: test accuracy, mean (seeds)" for p in problems]
    return ["", *header], table


def summary() -> Table:
    """Optimizers by workload: steps and seconds to the target, end, misses."""
    table = []
    for name, title in (
        ("classification", "ResNet-8, CIFAR-10 at 16 px"),
        ("segmentation", "thin DeepLabv3, scenes"),
    ):
        comparison, _ = workloads.read(name)
        for optimizer, seeds in comparison.runs.items():
            if optimizer == "sgd/thirds":
                continue
            crossings = [
                compare.crossing(rows, comparison.metric, comparison.target)
                for rows in seeds
            ]
            found = [row for row in crossings if row]
            table.append(
                _summary_row(
                    title,
                    optimizer,
                    [row["step"] for row in found],
                    [row["seconds"] for row in found],
                    [rows[-1][comparison.metric] for rows in seeds],
                    comparison.target,
                )
            )
    for name, title in (
        ("mlp", "MLP, Fashion-MNIST"),
        ("resnet", "small ResNet, CIFAR-10 halved"),
        ("autoencoder", "autoencoder, Fashion-MNIST"),
    ):
        table += _problem(name, title)
    table += _language_model_rows()
    header = ["workload (target)", "optimizer", "steps to the target, median"]
    header += ["seconds to it", "at the end, mean", "seeds that missed it"]
    return header, table


def language_model() -> tuple[float, dict[str, dict[int, tuple[int | None, float]]]]:
    """Returns the target of the language model, and its runs by variant, then by seed.

    Of each run: the step from which its loss stays at the target, or None, and the
    final loss.
    """
    rows = [row for row in results.rows("adamw_study") if row["stage"] == "final"]
    rows.sort(key=lambda row: row["seed"])
    tuned = np.mean([r["curve"][-1][1] for r in rows if r["variant"] == "adamw"])
    target = float(tuned) / compare.SHARE  # a loss
    found: dict[str, dict[int, tuple[int | None, float]]] = {}
    for row in rows:
        run = report.reached(row["curve"], target), row["curve"][-1][1]
        found.setdefault(row["variant"], {})[row["seed"]] = run
    return target, found


def _language_model_rows() -> list[list[str]]:
    target, runs = language_model()
    table = []
    for variant in ("adamw", "muon", "jorge", "jorge, whitening"):
        own = runs[variant].values()
        crossings = [step for step, _ in own if step]
        table.append(
            _summary_row(
                "transformer, Python's sources",
                variant,
                crossings,
                None,
                [final for _, final in own],
                target,
            )
        )
    return table


def _problem(name: str, title: str) -> list[list[str]]:
    data = results.read(f"training_{name}")
    facts = data["provenance"]
    table = []
    for optimizer in (
        *("sgd", "adamw", "muon", "psgd"),
        *(f"{family}@10/sgd-rate" for family in ("shampoo", "paper", "whitening")),
    ):
        key = {"stage": "final", "optimizer": optimizer}
        runs = [row for row in data["rows"] if key.items() <= row.items()]
        steps = [steps_to_target(row, facts) for row in runs]
        found = [step for step in steps if step]
        finals = [row["final"] for row in runs]
        table.append(
            _summary_row(
                title,
                optimizer,
                found,
                None,
                finals,
                facts["target"],
            )
        )
    return table


def _summary_row(
    title: str,
    optimizer: str,
    steps: list[int],
    seconds: list[float] | None,
    finals: list[float | None],
    target: float,
) -> list[str]:
    good = [final for final in finals if final is not None]
    missed = len(finals) - len(steps)
    return [
        f"{title} ({target:.4g})",
        optimizer,
        f"{np.median(steps):.0f}" if steps else "missed",
        _median_seconds(seconds),
        f"{np.mean(good):.4g}" if good else "diverged",
        f"{missed} of {len(finals)}" if missed else "none",
    ]


def _median_seconds(seconds: list[float] | None) -> str:
    if seconds is None:
        return "not timed"
    return f"{np.median(seconds):.1f}" if seconds else "missed"


def _parts(*, batch: bool) -> list[dict[str, Row]]:
    """Returns whole steps or updates alone: for each part, its rows by optimizer."""
    parts: dict[str, dict[str, Row]] = {}
    for row in results.read("step_cost")["rows"]:
        if bool(row["batch"]) == batch:
            parts.setdefault(row["part"], {})[row["optimizer"]] = row
    return list(parts.values())


def _refreshes(row: Row) -> list[float]:
    return row["step_seconds"].get("refresh", [])


def _plain(row: Row) -> float:
    return float(np.median(row["step_seconds"]["plain"]))


def _amortised(row: Row, interval: float) -> float:
    """Seconds of a mean step; PSGD-Kron refreshes with its own probability."""
    if not _refreshes(row):
        return _plain(row)
    more = float(np.median(_refreshes(row))) - _plain(row)
    return amortised(_plain(row), more, _own_interval(row, interval))


def _mean_flops(row: Row, interval: float) -> float:
    """Operations of a mean step."""
    return amortised(**row["flops"], interval=_own_interval(row, interval))


def _own_interval(row: Row, interval: float) -> float:
    return 1 / PSGD_SHARE if row["optimizer"] == "psgd" else interval


def amortised(plain: float, refresh: float, interval: float) -> float:
    """Mean over an interval in which one step costs `refresh` more than the others."""
    return plain + refresh / interval


def _compile(row: Row) -> float:
    return float(np.median(_compilations(row)))


def _compilations(row: Row) -> list[float]:
    return [sum(pair) for pair in row["lower_and_compile_seconds"]]


def _compile_over(row: Row, other: Row) -> float:
    """Median of the ratios of compilations that ran in turn."""
    pairs = zip(_compilations(row), _compilations(other), strict=False)
    return float(np.median([ours / theirs for ours, theirs in pairs]))


def _spread(seconds: list[float], digits: int, unit: str) -> str:
    if not seconds:
        return ""
    values = np.array(seconds) * {"s": 1, "ms": 1e3}[unit]
    middle, low, high = np.median(values), values.min(), values.max()
    return f"{middle:.{digits}f} {unit} ({low:.{digits}f} to {high:.{digits}f})"
