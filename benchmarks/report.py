"""Makes the tables and plots of README and docs from the committed JSON.

Tables stand between ``<!-- table:NAME -->`` and ``<!-- end -->``; plots are those of
report_plots.py that a page shows.

    python -m benchmarks.report           # writes them
    python -m benchmarks.report --check   # fails if one is out of date
"""

import pathlib
import re
import sys
from collections.abc import Callable

import numpy as np

from benchmarks import (
    report_costs,
    report_gpu,
    report_plots,
    report_rules,
    report_scaling,
    report_workloads,
    results,
)

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("**/README.md")),
]
SLOT = re.compile(r"(<!-- table:(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def refresh_bias() -> str:
    """Sides across, commuting or not down."""
    rows = [r for r in results.read("refresh_bias")["rows"] if r["refreshes"] == 1000]
    sides = sorted({row["side"] for row in rows})
    table = []
    for commuting in (True, False):
        errors = {
            row["side"]: np.mean(row["relative_error"])
            for row in rows
            if row["commuting"] == commuting
        }
        name = "all matrices commute" if commuting else "they do not"
        table.append([name, *(f"{errors[side]:.1%}" for side in sides)])
    return markdown(["", *(f"{side} x {side}" for side in sides)], table)


def _seeds(values: list[float], digits: int = 4) -> str:
    return (
        f"{np.mean(values):.{digits}f} ({', '.join(f'{v:.{digits}f}' for v in values)})"
    )


def tiles_study() -> str:
    """Variants down."""
    rows = results.read("tiles_study")["rows"]
    return markdown(
        ["", "training loss after 400 steps, mean (seeds)"],
        [[row["variant"], _seeds(row["final_loss"])] for row in rows],
    )


def interval_study() -> str:
    """Variants down."""
    rows = results.read("interval_study")["rows"]
    return markdown(
        ["interval", "refreshes", "mean loss of 600 steps (seeds)", "of the last 50"],
        [
            [
                row["variant"],
                str(row["refreshes"]),
                _seeds(row["mean_loss"]),
                _seeds(row["final_loss"]),
            ]
            for row in rows
        ],
    )


def adamw_study() -> str:
    """Variants down."""
    target, runs = report_costs.language_model()
    table = []
    for variant, rows in runs.items():
        found = [step or "missed" for step, _ in rows]
        final = [value for _, value in rows]
        table.append([variant, _seeds(final, 3), ", ".join(map(str, found))])
    steps = f"steps to {target:.3f}, by seed"
    return markdown(["", "final validation loss, mean (seeds)", steps], table)


def _made(function: Callable[..., report_rules.Table], *arguments: str):
    return lambda: markdown(*function(*arguments))


TABLES = {
    "adamw_study": adamw_study,
    "interval_study": interval_study,
    "refresh_bias": refresh_bias,
    "tiles_study": tiles_study,
    **{
        function.__name__: _made(function)
        for function in (
            report_costs.at_a_glance,
            report_costs.memory,
            report_costs.memory_runs,
            report_costs.steps,
            report_costs.summary,
            report_costs.updates,
            report_gpu.gpu_aims,
            report_gpu.gpu_bounds,
            report_gpu.gpu_compile,
            report_gpu.gpu_shares,
            report_gpu.gpu_steps,
            report_rules.numerics_arithmetic,
            report_rules.numerics_cosine,
            report_rules.numerics_endurance,
            report_rules.numerics_terms,
            report_rules.quality,
            report_rules.rule_cost,
            report_rules.start_study,
            report_scaling.gpu_depth,
            report_scaling.scaling_depth,
            report_scaling.scaling_interval,
            report_scaling.scaling_tile,
            report_scaling.scaling_width,
        )
    },
    **{
        f"{function.__name__}_{problem}": _made(function, problem)
        for function in (
            report_rules.training,
            report_rules.ranges,
            report_rules.rates,
            report_rules.lengths,
        )
        for problem in ("mlp", "autoencoder", "resnet", "transformer")
    },
    **{
        f"{function.__name__}_{name}": _made(function, name)
        for function in (
            report_workloads.workload,
            report_workloads.short,
            report_workloads.tuning,
        )
        for name in ("classification", "segmentation")
    },
}


def filled(text: str) -> str:
    """The text with all its tables made anew."""
    return SLOT.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)


def main() -> None:
    """Writes or checks the tables and the plots."""
    pages = [page for page in PAGES if filled(page.read_text()) != page.read_text()]
    plots = report_plots.stale("".join(page.read_text() for page in PAGES))
    if "--check" in sys.argv:
        old = [str(page.relative_to(ROOT)) for page in pages] + plots
        sys.exit(f"Out of date: {', '.join(old)}. make report" if old else 0)
    for page in pages:
        page.write_text(filled(page.read_text()))
    for name in plots:
        report_plots.draw(name)


if __name__ == "__main__":
    main()
