"""Documentation that cannot drift: it is run, and compared with the code."""

import inspect
import operator
import pathlib
import re
import subprocess
import sys

import jax
import pytest

import jorge_optax
from benchmarks.reports import contracts

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("**/*.md")),
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks():
    for page in PAGES:
        for number, match in enumerate(BLOCK.finditer(page.read_text())):
            name = f"{page.relative_to(ROOT)}:{number}"
            yield pytest.param(match[1], id=name)


@pytest.mark.parametrize("code", list(blocks()))
def test_code_blocks_run(code):
    with jax.numpy_rank_promotion("allow"):  # as users have it
        exec(compile(code, "<documentation>", "exec"), {"__name__": "documentation"})


def test_api_page_lists_exactly_the_public_names():
    text = (ROOT / "docs" / "api.md").read_text()
    table = text.split("## `jorge", 1)[0]
    cells = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    names = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(names) == sorted(jorge_optax.__all__)


def test_documented_defaults_are_the_real_ones():
    text = (ROOT / "docs" / "api.md").read_text()
    section = text.split("## `jorge(", 1)[1].split("\n## ", 1)[0]
    documented = dict(
        (name, cell.strip())
        for name, cell in re.findall(r"^\| `(\w+)` \|(.*?)\|", section, re.MULTILINE)
    )
    parameters = inspect.signature(jorge_optax.jorge).parameters
    assert list(documented) == list(parameters)
    for name, parameter in parameters.items():
        empty = parameter.default is inspect.Parameter.empty
        assert documented[name] == ("" if empty else f"`{parameter.default!r}`")
    ours = inspect.signature(jorge_optax.scale_by_jorge).parameters
    for name, parameter in ours.items():
        # The direction alone keeps no momentum unless asked, as the page says.
        default = None if name == "momentum" else parameters[name].default
        assert parameter.default == default
    assert "`momentum`, whose default is `None` there" in section


def test_documented_defaults_of_rules_and_lengths_are_the_real_ones():
    text = (ROOT / "docs" / "api.md").read_text()
    section = text.split("## Rules", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `([\w.]+)\.(\w+)` \| `(.*?)` \|", section, re.MULTILINE)
    assert len(rows) >= 8
    for owner, name, default in rows:
        owner = operator.attrgetter(owner)(jorge_optax)
        real = inspect.signature(owner).parameters[name].default
        assert eval(default) == real, (owner, name)


def test_the_table_of_contracts_has_every_test_of_the_suite_once():
    named = [name for _, _, *names in contracts.ROWS for name in names]
    assert sorted([*named, *contracts.CONTROLS]) == sorted(contracts.tests())


def test_newest_changelog_entry_is_this_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    unreleased, newest, *_ = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert unreleased == "[Unreleased]"
    version = re.escape(jorge_optax.__version__)
    assert re.fullmatch(rf"\[{version}\] - \d{{4}}-\d\d-\d\d", newest)


def test_the_citation_is_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    (version,) = re.findall(r"^version: (\S+)$", citation, re.MULTILINE)
    assert version == jorge_optax.__version__


def anchors(page):
    """Returns the anchors of the page's headings, as GitHub and MyST make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target, anchor in re.findall(
            r"\]\((?!\w+:)([^)#]*)#?([^)]*)\)", page.read_text()
        ):
            place = page.parent / target if target else page
            assert place.exists(), f"{page.name}: {target}"
            if anchor:
                assert anchor in anchors(place), f"{page.name}: {target}#{anchor}"


def test_tables_are_made_from_the_committed_results():
    command = [sys.executable, "-m", "benchmarks.reports", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
