"""GitHub's workflows and issue templates parse, and run make targets alone."""

import pathlib
import re

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands(workflow):
    """Returns what all jobs of a parsed workflow run in a shell."""
    jobs = workflow["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def others(workflow):
    """Returns the commands that are not a target of the Makefile."""
    known = {f"make {target}" for target in TARGETS}
    return [command for command in commands(workflow) if command not in known]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_make_targets_alone(path):
    workflow = yaml.safe_load(path.read_text())
    assert commands(workflow)
    assert not others(workflow)


def test_another_command_is_found():
    steps = [{"run": "make lint"}, {"run": "make no-such-target"}, {"run": "pytest"}]
    found = others({"jobs": {"job": {"steps": steps}}})
    assert found == ["make no-such-target", "pytest"]


def test_what_is_checked_before_a_merge_is_in_the_workflow():
    (ci,) = (path for path in WORKFLOWS if path.name == "ci.yml")
    run = set(commands(yaml.safe_load(ci.read_text())))
    local = re.findall(
        r"^(make [a-z-]+)$", (ROOT / ".ci/run").read_text(), re.MULTILINE
    )
    assert len(local) >= 3
    assert run >= set(local) | {"make test-oldest", "make test-newest"}


def test_a_release_is_published_without_a_token():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    publish = yaml.safe_load(text)["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets" not in text


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_issue_templates_parse(path):
    template = yaml.safe_load(path.read_text())
    if path.name != "config.yml":
        assert template["name"]
        assert template["description"]
        assert all(field["attributes"]["label"] for field in template["body"])
