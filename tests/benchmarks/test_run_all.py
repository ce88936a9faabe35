"""The command that runs all studies, and where their results come from."""

import collections
import json
import pathlib
import re

import pytest

from benchmarks.harness import results, run_all
from benchmarks.harness.run_all import Study

FOLDER = pathlib.Path(results.__file__).parents[1]  # benchmarks


def test_every_study_is_in_the_list():
    listed = {study.command.split()[0] for study in run_all.STUDIES}
    writing = {
        ".".join(path.relative_to(FOLDER).with_suffix("").parts)
        for path in FOLDER.rglob("*.py")
        if "results.write(" in path.read_text()
    }
    assert listed == writing
    assert len(run_all.STUDIES) == len({study.command for study in run_all.STUDIES})


@pytest.fixture
def ran(monkeypatch):
    """Commands that would have run; those with "broken" in them fail."""
    commands = []

    def run(study, folder, smoke):
        commands.append(study.command)
        return "ValueError: no" if "broken" in study.command else None

    monkeypatch.setattr(run_all, "run", run)
    monkeypatch.setattr(
        run_all, "missing", {"salt": "buy salt", "air": None}.__getitem__
    )
    return commands


def test_skips_goes_on_after_a_failure_and_resumes(ran, tmp_path, capsys):
    studies = [
        Study("first", 1, ("air",)),
        Study("broken", 1),
        Study("salty", 1, ("air", "salt"), smoke_needs=()),
        Study("last", 1),
    ]
    options = dict(smoke=False, resume=True)
    assert run_all.run_all(studies, tmp_path, **options) == 1
    assert ran == ["first", "broken", "last"]
    text = capsys.readouterr().out
    assert "Skipped salty: buy salt" in text
    assert "FAILED broken: ValueError: no" in text
    assert "2 done, 1 skipped, 1 failed" in text

    repaired = [study._replace(minutes=2) for study in studies if "b" not in study[0]]
    ran.clear()
    assert run_all.run_all([*repaired, Study("new", 1)], tmp_path, **options) == 0
    assert ran == ["new"]
    ran.clear()
    assert run_all.run_all(repaired, tmp_path, **options) == 0
    assert ran == ["first", "last"]  # nothing was left to resume
    ran.clear()
    assert run_all.run_all(studies, tmp_path, smoke=True, resume=False) == 1
    assert ran == ["first", "broken", "salty", "last"]


def test_a_smoke_run_is_small_and_leaves_the_committed_results_alone(tmp_path):
    committed = (FOLDER / "results" / "scale.json").read_bytes()
    assert run_all.run(Study("cost.scale", 1), tmp_path, smoke=True) is None
    assert (FOLDER / "results" / "scale.json").read_bytes() == committed
    found = json.loads((tmp_path / "scale.json").read_text())
    assert 0 < len(found["rows"]) < len(json.loads(committed)["rows"])
    command = "python -m benchmarks.cost.scale"
    assert found["provenance"]["command"] == command


def test_provenance_and_the_commits_of_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(results, "COMMIT", "new")
    old = {"provenance": {"commit": "0ld"}, "rows": [{"x": 1}, {"x": 2, "commit": "a"}]}
    (tmp_path / "study.json").write_text(json.dumps(old))
    rows = [{"seed": 2, "x": 3}, {"seed": 0, "x": 4}]
    results.write("study", [*results.rows("study"), *rows], steps=5)
    found = results.read("study")
    assert [row["commit"] for row in found["rows"]] == ["0ld", "a", "new", "new"]
    assert [row["x"] for row in found["rows"]] == [1, 2, 3, 4]
    facts = {"command", "date", "python", "jax", "optax", "device"}
    assert facts <= set(found["provenance"])
    own = {"commit": "new", "seeds": [0, 2], "steps": 5}
    assert own.items() <= found["provenance"].items()


def test_readme_lists_every_study_with_its_minutes():
    minutes = collections.Counter()
    for study in run_all.STUDIES:
        minutes[study.command.split()[0]] += study.minutes
    text = (FOLDER / "README.md").read_text()
    row = r"^\| `([\w.]+)` \| [^|]+\? \|[^|]*\| (\d+) \| (.+?) \|"
    rows = re.findall(row, text, re.MULTILINE)
    assert {study: int(number) for study, number, _ in rows} == minutes
    names = {name for *_, files in rows for name in re.findall(r"`(.+?)`", files)}
    found = {path for name in names for path in FOLDER.glob(f"results/{name}.json")}
    assert found == set(FOLDER.glob("results/*.json"))
