"""Plots of the pages: they show the committed data, and the check sees when not."""

import copy
import json

import pytest

from benchmarks.harness import results
from benchmarks.reports import pages as report
from benchmarks.reports import plots


def add(values, key):
    values[key] += 1e-4


# From a plot to a file that it is drawn from, a row there, and a change of one number.
CHANGES = {
    "demo.png": (
        "demo",
        {"stage": "final", "optimizer": "adamw", "seed": 1},
        lambda row: add(row["curve"][-1], 1),
    ),
    "segmentation.png": (
        "workload_segmentation",
        {"stage": "final", "optimizer": "sgd", "seed": 3},
        lambda row: add(row["curve"], -1),
    ),
}


PAGE = "".join(f"![A plot](images/{name})" for name in CHANGES)


def read_instead(monkeypatch, change):
    """Lets results be read after a change of (name, results)."""
    read = results.read

    def changed(name):
        data = copy.deepcopy(read(name))
        change(name, data)
        return data

    monkeypatch.setattr(results, "read", changed)


def test_committed_plots_show_the_committed_data():
    pages = "".join(page.read_text() for page in report.PAGES)
    assert plots.stale(pages) == []
    kept = json.loads((plots.FOLDER / plots.DIGESTS).read_text())
    images = {path.name for path in plots.FOLDER.glob("*.png")}
    assert set(kept) == images


@pytest.mark.parametrize("plot", CHANGES)
def test_another_number_makes_a_plot_stale(monkeypatch, tmp_path, plot):
    file, wanted, change = CHANGES[plot]

    def one_number(name, data):
        if name == file:
            change(next(row for row in data["rows"] if wanted.items() <= row.items()))

    page = tmp_path / "page.md"
    page.write_text(PAGE)
    monkeypatch.setattr(report, "PAGES", [page])
    monkeypatch.setattr("sys.argv", ["reports", "--check"])
    with pytest.raises(SystemExit, match="^0$"):
        report.main()
    read_instead(monkeypatch, one_number)
    with pytest.raises(SystemExit, match=f"Out of date: {plot}"):
        report.main()


def test_a_digest_sees_six_digits_and_keys():
    data = {"a": [0.123456, 2], "b": None}
    digest = plots.digest(data)
    assert digest == plots.digest({"b": None, "a": [0.1234560000001, 2]})
    assert digest != plots.digest({"b": None, "a": [0.123457, 2]})
    assert digest != plots.digest({"b": 0, "a": [0.123456, 2]})
    with pytest.raises(ValueError, match="not JSON compliant"):
        plots.digest([float("nan")])
