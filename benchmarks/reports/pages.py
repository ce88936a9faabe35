"""Makes the tables and plots of README and docs from the committed JSON.

A table is between ``<!-- table:NAME -->`` and ``<!-- end -->``; the plots are those of
plots.py that a page shows.

    python -m benchmarks.reports           # writes them
    python -m benchmarks.reports --check   # fails if one is out of date
"""

import pathlib
import re
import sys
from collections.abc import Callable

import numpy as np

from benchmarks.reports import (
    compilation,
    costs,
    demo,
    distributed,
    evidence,
    gpu,
    plots,
    robustness,
    rules,
    scale,
    workloads,
)

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("**/*.md")),
    *sorted((ROOT / "examples").glob("**/README.md")),
]
SLOT = re.compile(r"(<!-- table:([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """Formats a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _seeds(values: list[float], digits: int = 4) -> str:
    return (
        f"{np.mean(values):.{digits}f} ({', '.join(f'{v:.{digits}f}' for v in values)})"
    )


def adamw_study() -> str:
    """Rows: variants."""
    target, runs = costs.language_model()
    table = []
    for variant, seeds in runs.items():
        found = [step or "missed" for step, _ in seeds.values()]
        final = [value for _, value in seeds.values()]
        table.append([variant, _seeds(final, 3), ", ".join(map(str, found))])
    steps = f"steps to {target:.3f}, by seed"
    return markdown(["", "final validation loss, mean (seeds)", steps], table)


def _made(function: Callable[..., rules.Table], *arguments: str):
    return lambda: markdown(*function(*arguments))


TABLES = {
    "adamw_study": adamw_study,
    **{
        function.__name__: _made(function)
        for function in (
            costs.at_a_glance,
            compilation.compilation,
            compilation.compilation_diagnostics,
            compilation.compilation_updates,
            costs.memory,
            costs.memory_runs,
            costs.steps,
            costs.summary,
            costs.updates,
            demo.demo,
            demo.demo_rates,
            distributed.distributed,
            distributed.distributed_fsdp,
            distributed.distributed_gpu,
            distributed.distributed_time,
            evidence.default_rate,
            evidence.headline,
            evidence.once_or_twice,
            evidence.paired,
            evidence.peers,
            evidence.tuned,
            gpu.gpu_aims,
            gpu.gpu_bounds,
            gpu.gpu_compile,
            gpu.gpu_shares,
            gpu.gpu_steps,
            robustness.descent,
            robustness.fuzz,
            rules.ablation,
            scale.scale_models,
            scale.scale_options,
            scale.scale_tiles,
        )
    },
    **{
        f"training_{problem}": _made(rules.training, problem)
        for problem in ("mlp", "resnet", "autoencoder", "autoencoder_long")
    },
    **{
        f"{function.__name__}_{name}": _made(function, name)
        for function in (
            workloads.workload,
            workloads.short,
            workloads.tuning,
        )
        for name in workloads.NAMES
    },
}


def filled(text: str) -> str:
    """Returns the text with all its tables updated."""
    return SLOT.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)


def main() -> None:
    """Writes or checks the tables and the plots."""
    pages = [page for page in PAGES if filled(page.read_text()) != page.read_text()]
    images = plots.stale("".join(page.read_text() for page in PAGES))
    if "--check" in sys.argv:
        old = [str(page.relative_to(ROOT)) for page in pages] + images
        sys.exit(f"Out of date: {', '.join(old)}. make report" if old else 0)
    for page in pages:
        page.write_text(filled(page.read_text()))
    for name in images:
        plots.draw(name)
