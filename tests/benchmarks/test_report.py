"""Plots of the pages: they show the committed data, and the check sees when not."""

import copy
import json

import pytest

from benchmarks.harness import results
from benchmarks.reports import pages as report
from benchmarks.reports import plots


def test_committed_plots_show_the_committed_data():
    pages = "".join(page.read_text() for page in report.PAGES)
    assert plots.stale(pages) == []
    kept = json.loads((plots.FOLDER / plots.DIGESTS).read_text())
    assert set(kept) == {path.name for path in plots.FOLDER.glob("*.png")}


def test_another_number_makes_a_plot_stale(monkeypatch, tmp_path):
    read = results.read

    def changed(name):
        data = copy.deepcopy(read(name))
        if name == "demo":
            row = next(row for row in data["rows"] if row["stage"] == "final")
            row["curve"][-1][1] += 1e-4
        return data

    page = tmp_path / "page.md"
    page.write_text("![A plot](images/demo.png) ![Another](images/segmentation.png)")
    monkeypatch.setattr(report, "PAGES", [page])
    monkeypatch.setattr("sys.argv", ["reports", "--check"])
    with pytest.raises(SystemExit, match="^0$"):
        report.main()
    monkeypatch.setattr(results, "read", changed)
    with pytest.raises(SystemExit, match="Out of date: demo.png"):
        report.main()


def test_a_digest_sees_six_digits_and_keys():
    digest = plots.digest({"a": [0.123456, 2], "b": None})
    assert digest == plots.digest({"b": None, "a": [0.1234560000001, 2]})
    assert digest != plots.digest({"b": None, "a": [0.123457, 2]})
    assert digest != plots.digest({"b": 0, "a": [0.123456, 2]})
