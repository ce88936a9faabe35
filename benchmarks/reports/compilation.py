"""Makes the tables of what compilation costs."""

import numpy as np

from benchmarks.harness import results
from benchmarks.reports.rules import Table

NAMES = {
    "sgd": "SGD",
    "adamw": "AdamW",
    "jorge": "Jorge",
    "whitening": "Jorge, whitening",
}
UPDATED = {
    "cnn": "CNN of 4 layers",
    "transformer": "transformer of 2 blocks",
    "resnet50": "ResNet-50",
}


def compilation() -> Table:
    """Rows: optimizers on a small network; seconds with an empty and a filled cache."""
    table = [
        [
            NAMES[row["optimizer"]],
            f"{np.median(row['first_seconds']):.2f}",
            f"{np.median(row['second_seconds']):.2f}",
            f"{row['cache_bytes'] / 1000:.0f} kB",
        ]
        for row in results.rows("compilation")
        if row["kind"] == "step"
    ]
    header = ["", "first process, s", "second process, with the cache, s"]
    return [*header, "in the cache"], table


def compilation_updates() -> Table:
    """Rows: models; seconds and kernels of the update alone, over AdamW's."""
    names = {**NAMES, "no refresh": "whitening without a refresh"}
    columns = ("jorge", "whitening", "no refresh")
    table = []
    for model, title in UPDATED.items():
        own, ratios = _updates(model), ratios_over_adamw(model)
        adamw = own["adamw"]
        cells = [f"{np.median(adamw['seconds']):.2f} s, {adamw['kernels']}"]
        for name in columns:
            least, median, most = np.quantile(ratios[name], (0, 0.5, 1))
            kernels = own[name]["kernels"]
            cells.append(f"{median:.1f} ({least:.1f} to {most:.1f}), {kernels}")
        table.append([title, *cells])
    header = [f"{names[name]}: over AdamW's, kernels" for name in columns]
    return ["update", "AdamW: CPU time, kernels", *header], table


def over_adamw(model: str) -> dict[str, float]:
    """Median ratio of the seconds that an update compiles to AdamW's, by optimizer."""
    ratios = ratios_over_adamw(model)
    return {name: float(np.median(own)) for name, own in ratios.items()}


def ratios_over_adamw(model: str) -> dict[str, np.ndarray]:
    """Ratios of those seconds, of compilations that ran in turn, by optimizer."""
    seconds = {name: np.array(row["seconds"]) for name, row in _updates(model).items()}
    return {name: own / seconds["adamw"] for name, own in seconds.items()}


def _updates(model: str) -> dict[str, dict]:
    key = {"kind": "update", "model": model}
    rows = results.rows("compilation")
    return {row["optimizer"]: row for row in rows if key.items() <= row.items()}


def compilation_diagnostics() -> Table:
    """Rows: models; seconds that diagnostics takes to lower and compile."""
    table = [
        [
            row["model"],
            *(
                f"{np.median(row[key]):.1f}"
                for key in ("seconds", "seconds_with_gradients")
            ),
        ]
        for row in results.rows("compilation")
        if row["kind"] == "diagnostics"
    ]
    return ["", "without gradients, s", "with gradients, s"], table
