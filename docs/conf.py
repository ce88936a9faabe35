"""Settings of the documentation's site; ``make docs`` builds it into build/docs."""

import inspect
import os
import pathlib
import re

import jorge_optax

DOCS = pathlib.Path(__file__).parent
API = (DOCS / "api.md").read_text()
# Pages that show a file from outside of docs/.
SHOWN = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "examples/README.md": "examples.md",
}

project = "jorge_optax"
author = "the authors of jorge_optax"
version = release = jorge_optax.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["README.md"]

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4

autodoc_typehints = "none"  # the signatures have them
autodoc_member_order = "bysource"
napoleon_use_ivar = True
add_module_names = False
python_maximum_signature_line_length = 80

html_theme = "furo"
html_title = f"jorge_optax {release}"
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["wide.css"]


def shown_file(app, docname, source):
    """Puts the text of a file into the page that shows it, and fixes its links."""
    del app
    page = DOCS / f"{docname}.md"
    file = next((DOCS.parent / f for f, p in SHOWN.items() if DOCS / p == page), page)
    more = {"index": other_pages, "reference": docstrings}.get(docname, str)
    source[0] = more(
        re.sub(
            r"\[([^\]]*)\]\((?!\w+:|#)([^)#]+)(#[^)]*)?\)",
            lambda match: link(match, file.parent, page.parent),
            file.read_text(),
        )
    )


def other_pages(index: str) -> str:
    """Adds a list of the pages that the index does not list itself."""
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index", *index.split("\n")}
    listed = "\n".join(sorted(pages))
    return f"{index}\n```{{toctree}}\n:hidden:\n:caption: More\n\n{listed}\n```\n"


def docstrings(page: str) -> str:
    """Adds the docstring of each public name, in the order of the page `api`."""
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", API, re.MULTILINE)
    names = [n for n in re.findall(r"\w+", " ".join(rows)) if n in jorge_optax.__all__]
    names.sort(key=lambda name: inspect.ismodule(getattr(jorge_optax, name)))
    start = [page, "```{eval-rst}", ".. currentmodule:: jorge_optax", ""]
    return "\n".join([*start, *map(directive, names), "```", ""])


def directive(name: str) -> str:
    """Returns what documents a name: a module with all its members, or itself."""
    thing = getattr(jorge_optax, name)
    if inspect.ismodule(thing):
        heading = f"jorge_optax.{name}"
        members = f".. automodule:: {heading}\n   :members:\n"
        return f"\n{heading}\n{'-' * len(heading)}\n\n{members}"
    if inspect.isclass(thing):
        members = "" if issubclass(thing, tuple) else "   :members:\n"
        return f".. autoclass:: {name}\n{members}"
    return f".. autofunction:: {name}\n"


def link(match: re.Match, base: pathlib.Path, folder: pathlib.Path) -> str:
    """Returns a link of a file in base for a page in folder.

    Folders and Markdown files that are no pages of the site become plain text.
    """
    text, target, anchor = match.groups()
    path = (base / target).resolve()
    outside = path.relative_to(DOCS.parent).as_posix()
    if f"{outside}/README.md" in SHOWN:
        outside += "/README.md"
    if outside in SHOWN:
        path = DOCS / SHOWN[outside]
    elif outside == "README.md":
        path = DOCS / "index.md"
    elif path.is_dir() or (path.suffix == ".md" and DOCS not in path.parents):
        return text
    place = pathlib.Path(os.path.relpath(path, folder)).as_posix()
    return f"[{text}]({place}{anchor or ''})"


def setup(app):
    """Registers what this file adds to Sphinx."""
    app.connect("source-read", shown_file)
