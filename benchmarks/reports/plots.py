"""Draws the plots of docs/images, and checks whether they show the current data.

Next to the images, plots.json keeps a digest of the data that each was drawn from. Only
plots that a page shows are drawn and checked. To draw one again although its data are
the same, delete it first.
"""

import functools
import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.reports import demo, workloads

FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "images"
DIGESTS = "plots.json"
STYLE = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "font.size": 9,
    "grid.alpha": 0.3,
    "axes.grid": True,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


class Plot(NamedTuple):
    """The data of a plot, from the committed JSON alone, and how to draw them."""

    data: Callable[[], Any]
    draw: Callable[[Any, pathlib.Path], None]


def _styled(figure: Callable[[Any], Figure]) -> Callable[[Any, pathlib.Path], None]:
    def draw(data: Any, path: pathlib.Path) -> None:
        with mpl.rc_context(STYLE):
            figure(data).savefig(path, dpi=110)

    return draw


PLOTS = {
    "demo.png": Plot(demo.data, _styled(demo.figure)),
    **{
        f"{name}.png": Plot(
            functools.partial(workloads.plot_data, name), workloads.plot
        )
        for name in workloads.NAMES
    },
}


def digest(data: Any) -> str:
    """Returns the SHA-256 of the data as JSON, with six digits of each number."""
    text = json.dumps(data, allow_nan=False)
    short = json.loads(text, parse_float=lambda number: float(f"{float(number):.6g}"))
    return hashlib.sha256(json.dumps(short, sort_keys=True).encode()).hexdigest()


def stale(pages: str, folder: pathlib.Path = FOLDER) -> list[str]:
    """Names the plots shown in these pages that are missing or show other data."""
    kept = _read(folder)
    shown = [name for name in PLOTS if f"images/{name}" in pages]
    return [
        name
        for name in shown
        if kept.get(name) != digest(PLOTS[name].data()) or not (folder / name).exists()
    ]


def draw(name: str, folder: pathlib.Path = FOLDER) -> None:
    """Draws a plot, and saves the digest of its data."""
    data = PLOTS[name].data()
    PLOTS[name].draw(data, folder / name)
    digests = {**_read(folder), name: digest(data)}
    text = json.dumps(digests, indent=1, sort_keys=True) + "\n"
    (folder / DIGESTS).write_text(text)


def _read(folder: pathlib.Path) -> dict[str, str]:
    path = folder / DIGESTS
    return json.loads(path.read_text()) if path.exists() else {}
