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


def test_what_no_plot_shows_makes_none_stale(monkeypatch):
    read_instead(
        monkeypatch, lambda name, data: data["provenance"].update(date="2000-01-01")
    )
    assert plots.stale(PAGE) == []


def test_a_digest_sees_six_digits_and_keys():
    data = {"a": [0.123456, 2], "b": None}
    digest = plots.digest(data)
    assert digest == plots.digest({"b": None, "a": [0.1234560000001, 2]})
    assert digest != plots.digest({"b": None, "a": [0.123457, 2]})
    assert digest != plots.digest({"b": 0, "a": [0.123456, 2]})
    with pytest.raises(ValueError, match="not JSON compliant"):
        plots.digest([float("nan")])


def workload(name):
    """Results of a study of two optimizers; one value is not finite."""
    assert name == "workload_classification"
    run = {"stage": "final", "seed": 0, "steps": [5, 10], "seconds": [0.5, 1.0]}
    rows = [
        {**run, "optimizer": "sgd", "curve": [0.5, 0.75]},
        {**run, "optimizer": "jorge", "curve": [None, 0.8]},
        {**run, "optimizer": "sgd", "stage": "tune", "curve": [0.1, 0.2]},
    ]
    return {"provenance": {"metric": "accuracy"}, "rows": rows}


def test_a_plot_is_drawn_once_until_its_data_change(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "read", workload)
    name, page = "classification.png", "![Curves](images/classification.png)"
    assert plots.stale("a page without plots", tmp_path) == []
    assert plots.stale(page, tmp_path) == [name]
    plots.draw(name, tmp_path)
    assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert plots.stale(page, tmp_path) == []
    read_instead(monkeypatch, lambda _, data: add(data["rows"][1]["seconds"], 1))
    assert plots.stale(page, tmp_path) == [name]
    plots.draw(name, tmp_path)
    assert plots.stale(page, tmp_path) == []
    (tmp_path / name).unlink()
    assert plots.stale(page, tmp_path) == [name]
