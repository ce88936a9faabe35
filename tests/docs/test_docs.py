"""Documentation that cannot drift: it is run, and compared with the code."""

import ast
import inspect
import operator
import pathlib
import re
import runpy
import subprocess
import sys

import jax
import pytest

import jorge_optax

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
    names = [name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)]
    modules = [
        f"{module}.{name}"
        for module in ("tuning", "views", "lengths")
        for name in getattr(jorge_optax, module).__all__
    ]
    assert sorted(names) == sorted([*jorge_optax.__all__, *modules])


def test_documented_defaults_are_the_real_ones():
    text = (ROOT / "docs" / "api.md").read_text()
    section = text.split("## `jorge(", 1)[1].split("\n## ", 1)[0]
    documented = re.findall(r"^\| `(\w+)` \| *(.*?) *\|", section, re.MULTILINE)
    parameters = inspect.signature(jorge_optax.jorge).parameters.values()
    assert documented == [
        (own.name, "" if own.default is own.empty else f"`{own.default!r}`")
        for own in parameters
    ]
    # The direction alone keeps no momentum unless asked, as the page says.
    ours = inspect.signature(jorge_optax.scale_by_jorge).parameters
    defaults = {own.name: own.default for own in parameters} | {"momentum": None}
    assert defaults.items() >= {(name, own.default) for name, own in ours.items()}
    assert "`momentum`, whose default is `None` there" in section


def test_documented_defaults_of_rules_and_lengths_are_the_real_ones():
    text = (ROOT / "docs" / "api.md").read_text()
    section = text.split("## Rules", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `([\w.]+)\.(\w+)` \| `(.*?)` \|", section, re.MULTILINE)
    assert len(rows) >= 15
    for owner, name, default in rows:
        owner = operator.attrgetter(owner)(jorge_optax)
        real = inspect.signature(owner).parameters[name].default
        assert eval(default) == real, (owner, name)


def misnamed(text):
    """Returns the inline code that names, or calls, what the package does not have."""
    wrong = []
    for code in re.findall(r"(?<!`)`([^`\n]+)(?<!\.py)`(?!`)", text):
        try:
            nodes = list(ast.walk(ast.parse(code.replace("...", "None"))))
        except SyntaxError:  # a file, a flag, an argument
            continue
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        known = all(map(is_known, attributes)) and all(map(takes_keywords, calls))
        wrong += [code] * (not known)
    return wrong


def is_known(attribute):
    """Returns whether the package has an attribute, if it is one of the package."""
    first, rest = ast.unparse(attribute).split(".", 1)
    owner = jorge_optax if first == "jorge_optax" else getattr(jorge_optax, first, None)
    if not inspect.ismodule(owner) and not isinstance(owner, type):
        return True
    try:
        operator.attrgetter(rest)(owner)
    except AttributeError:  # a field without a default
        return isinstance(owner, type) and rest in inspect.signature(owner).parameters
    return True


def takes_keywords(call):
    """Returns whether a function of the package takes the keywords of a call."""
    try:
        function = operator.attrgetter(ast.unparse(call.func))(jorge_optax)
    except AttributeError:
        return True  # of another package
    parameters = inspect.signature(function).parameters
    return {keyword.arg for keyword in call.keywords} <= set(parameters)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_inline_code_names_what_exists(page):
    assert not misnamed(page.read_text())


def test_names_that_are_gone_are_found():
    gone = [
        "views.without",
        "Whitening.start",
        "jorge(0.1, eps=1e-6)",
        "lengths.Lion()",
    ]
    here = ["views.only", "Whitening.beta2", "jorge(0.1, rule=x)", "optax.adamw(1e-3)"]
    assert misnamed(" ".join(f"`{code}`" for code in [*gone, *here])) == gone


def test_the_functions_of_the_algorithm_page_are_in_their_files():
    text = (ROOT / "docs" / "algorithm.md").read_text()
    rows = re.findall(r"^\|.*jorge_optax/\w+\.py.*$", text, re.MULTILINE)
    assert rows
    for row in rows:
        source = (ROOT / re.search(r"jorge_optax/\w+\.py", row)[0]).read_text()
        (cell,) = re.findall(r"\|((?: `\w+`,?)+) (?=\|)", row)
        for name in re.findall(r"\w+", cell):
            assert f"def {name}(" in source, row


def test_contributing_lists_exactly_the_modules():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.split("## Find the module", 1)[1].split("\n## ", 1)[0]
    listed = re.findall(r"`(\w+\.py)`", section)
    modules = (path.name for path in (ROOT / "jorge_optax").glob("*.py"))
    assert sorted(listed) == sorted(modules)


def test_files_that_pages_cite_exist():
    folders = r"(?:benchmarks|docs|examples|jorge_optax|tests)"
    cited = re.compile(rf"`({folders}/[\w/]+\.?\w*)`|python -m ({folders}(?:\.\w+)+)")
    found = 0
    for page in PAGES:
        for path, module in cited.findall(page.read_text()):
            place = ROOT / (path or module.replace(".", "/"))
            assert place.exists() or place.with_suffix(".py").exists(), (page, place)
            found += 1
    assert found > 10


def test_the_picture_of_the_data_flow_is_what_its_script_draws():
    script = ROOT / "docs" / "static" / "flow.py"
    assert (
        runpy.run_path(str(script))["draw"]() == script.with_suffix(".svg").read_text()
    )


def test_changelog_and_citation_are_of_this_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    newest = next(heading for heading in headings if heading != "[Unreleased]")
    version = re.escape(jorge_optax.__version__)
    assert re.fullmatch(rf"\[{version}\] - \d{{4}}-\d\d-\d\d", newest)
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (\S+)$", citation, re.MULTILINE) == [
        jorge_optax.__version__
    ]


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
