"""Makes the tables of the examples' steps and of updates, timed on a CPU."""

from benchmarks.harness import results
from benchmarks.reports.rules import Table

NAMES = {"adamw": "AdamW", "jorge": "Jorge, paper's rule", "whitening": "whitening"}
TITLES = {"lm": "transformer of width 128", "language_model": "language_model"}


def _ratio(row: dict) -> str:
    ratio = row["ratio"]
    return f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"


def _rows(kind: str, version: str | None = None) -> dict[str, dict[str, dict]]:
    """Returns rows by model and optimizer."""
    found: dict[str, dict[str, dict]] = {}
    for row in results.rows("example_cost"):
        if row["kind"] == kind and row.get("version") == version:
            found.setdefault(row["model"], {})[row["optimizer"]] = row
    return found


def example_steps() -> Table:
    """Whole steps of the examples over SGD's, and why; rows: examples."""
    counted = _rows("profile")
    rules = ("jorge", "whitening")
    table = []
    for model, own in _rows("step").items():
        flops = {name: row["gflop"] for name, row in counted[model].items()}
        more = (f"+{flops[rule] / flops['sgd'] - 1:.0%}" for rule in rules)
        table.append(
            [
                TITLES.get(model, model),
                f"{1000 * own['sgd']['step_seconds']['median']:.1f} ms",
                *(_ratio(own[name]) for name in NAMES),
                f"{flops['sgd']:.2f} GFLOP",
                *more,
            ]
        )
    header = ["example", "SGD's step", *(f"{x}, over it" for x in NAMES.values())]
    header += ["products of SGD's step", *(f"{NAMES[rule]}: more" for rule in rules)]
    return header, table


def example_updates() -> Table:
    """Updates over AdamW's, before and after; rows: models."""
    versions = {"before": _rows("update", "before"), "now": _rows("update", "now")}
    rules = ("jorge", "whitening")
    table = []
    for model, own in versions["now"].items():
        cells = [f"{1000 * own['adamw']['plain_seconds']['median']:.1f} ms"]
        for rule in rules:
            for rows in versions.values():
                row = rows.get(model, {}).get(rule)
                cells.append(_ratio(row) if row else "not run")
        table.append([TITLES.get(model, model), *cells])
    header = [f"{NAMES[rule]}, {when}" for rule in rules for when in versions]
    return ["model", "AdamW's update", *header], table
