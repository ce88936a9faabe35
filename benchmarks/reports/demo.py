"""Makes the tables and the plot of the demo, examples/language_model."""

from statistics import mean

from matplotlib.figure import Figure

from benchmarks.harness import results
from examples.language_model import report

Table = tuple[list[str], list[list[str]]]
SHOWN = (0, 1, 2)  # the demo's own seeds


def runs(stage: str) -> dict[str, dict[int, report.Curve]]:
    """Returns optimizer to seed to curve, of optimizers with at least three seeds.

    Only the seeds that all these optimizers have are taken.
    """
    found: dict[str, dict[int, report.Curve]] = {name: {} for name in report.LABELS}
    for row in results.read("demo")["rows"]:
        if row["stage"] == stage:
            found[row["optimizer"]][row["seed"]] = [(s, v) for s, v in row["curve"]]
    found = {name: curves for name, curves in found.items() if len(curves) >= 3}
    common = set.intersection(*(set(curves) for curves in found.values()))
    return {
        name: {seed: curves[seed] for seed in sorted(common)}
        for name, curves in found.items()
    }


def demo() -> Table:
    """Rows: optimizers; every seed."""
    final = {name: list(curves.values()) for name, curves in runs("final").items()}
    last = report.finals(final)
    target = mean(last[report.BASELINE])
    table = []
    for name, curves in final.items():
        steps = [report.reached(curve, target) or "never" for curve in curves]
        gaps = [a - b for a, b in zip(last[name], last[report.OURS], strict=True)]
        margin = f"{mean(gaps):.3f} ({min(gaps):.3f} to {max(gaps):.3f})"
        table.append(
            [
                report.LABELS[name],
                f"{mean(last[name]):.3f} ({', '.join(f'{v:.3f}' for v in last[name])})",
                ", ".join(map(str, steps)),
                "" if name == report.OURS else margin,
            ]
        )
    steps = f"steps until it stays below {target:.3f}"
    margin = "whitening ends lower by, mean (least to most)"
    return ["", "loss at the end, mean (seeds)", steps, margin], table


def demo_rates() -> Table:
    """Rows: the tuned optimizers; the loss of each rate on the tuning seed."""
    cells: dict[str, dict[float, float]] = {}
    for row in results.read("demo")["rows"]:
        if row["stage"] == "tune":
            rates = cells.setdefault(row["optimizer"], {})
            rates[row["rate"]] = row["curve"][-1][1]
    return ["", "learning rate: loss at the end"], [
        [name, ", ".join(f"{rate:g}: {rates[rate]:.3f}" for rate in sorted(rates))]
        for name, rates in cells.items()
    ]


def data() -> dict[str, list[report.Curve]]:
    """Returns the curves that the plot shows."""
    return {
        name: [curves[seed] for seed in SHOWN if seed in curves]
        for name, curves in runs("final").items()
    }


def figure(curves: dict[str, list[report.Curve]]) -> Figure:
    """Draws what `make demo` draws."""
    return report.figure(curves)
