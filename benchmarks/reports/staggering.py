"""Makes the table of staggered refreshes and TF32 products in training."""

from benchmarks.reports.rules import Table, mean_and_seeds
from benchmarks.training import staggering as study


def staggering() -> Table:
    """Rows: staggered refreshes and TF32 products; columns: problems."""
    problems = {
        "mlp": ("MLP, accuracy", 4, 1),
        "resnet": ("ResNet, accuracy", 3, 1),
        "lm": ("transformer, loss", 3, -1),
    }
    table = []
    for variant in study.VARIANTS:
        cells = []
        for problem, (_, digits, sign) in problems.items():
            runs, base = (
                {row["seed"]: row["final"] for row in study.rows_of(problem, name)}
                for name in (variant, study.ALL_AT_ONCE)
            )
            shared = sorted(runs.keys() & base.keys())
            if not shared:
                cells.append("not run")
                continue
            cell = mean_and_seeds([runs[seed] for seed in shared], digits)
            if variant != study.ALL_AT_ONCE:
                better = [sign * (runs[seed] - base[seed]) for seed in shared]
                spread = max(base.values()) - min(base.values())
                mean = sum(better) / len(better)
                cell += f"; {sign * mean:+.{digits}f}"
                if len(base) > 1:
                    verdict = "worse" if mean < -spread else "within the spread"
                    verdict = "better" if mean > spread else verdict
                    cell += f", {verdict} of {spread:.{digits}f}"
            cells.append(cell)
        table.append([variant, *cells])
    return ["whitening, interval 10", *(name for name, *_ in problems.values())], table
