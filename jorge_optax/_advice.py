"""Advice on parameters that a view does not fit, each with the view that does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from jorge_optax._types import Shape
from jorge_optax.views import PROJECTION, is_bias

# A state of more than so many times the parameter is marked. Square tiles with two
# momenta have 4 times, the last layer of a classifier may have 10.
OUT_OF_PROPORTION = 12
# Axes of the window of a convolution are at most so long.
LONGEST_WINDOW = 16
# An embedding has at least so many rows, where its name does not tell.
LARGE_VOCABULARY = 16384
# Names of attention's last projection, whose default view is right.
OUTPUT = re.compile(r"att.*[^a-z](o|out|output|proj|out_proj|o_proj)([^a-z]|$)")
# Names of depthwise convolutions; by shape, one of a grey image looks the same.
DEPTHWISE = re.compile(r"depthwise|(^|[^a-z])dw")
# Parts of a path that do not tell one parameter from another.
PLAIN = ("kernel", "weight", "value", "params")


class Row(Protocol):
    """What the advice depends on: a row of the table."""

    @property
    def path(self) -> str:
        """Path of the parameter."""
        ...

    @property
    def shape(self) -> Shape:
        """Shape of the parameter."""
        ...

    @property
    def matrix(self) -> str:
        """Its matrix view; ``"-"`` without roots."""
        ...

    @property
    def out_of_proportion(self) -> bool:
        """Whether the state is unusually large for the parameter."""
        ...


class _Advice(NamedTuple):
    reason: str
    remedy: str  # with {view} for the view
    view: str  # name in jorge_optax.views
    word: str = ""  # argument of the view


def make_notes(rows: Sequence[Row], *, by_default: bool) -> tuple[str, ...]:
    """Groups parameters by what there is to reconsider, and names the remedies.

    Args:
      rows: The rows of the table.
      by_default: Whether they have the default view.

    Returns:
      One sentence for each remedy; with several, one more that has them all.
    """
    groups: dict[_Advice, list[Row]] = {}
    with_roots = [row for row in rows if row.matrix != "-"]
    healthy = [row.path for row in with_roots if not row.out_of_proportion]
    for row in with_roots:
        advice = _advise(row) if by_default else None
        if advice is None and row.out_of_proportion:
            advice = _Advice(
                f"a state of more than {OUT_OF_PROPORTION} times the parameter",
                "{view} leaves it without roots; Tiling(max_dim=64) makes them smaller",
                "without",
                _word(row.path, healthy),
            )
        if advice:
            groups.setdefault(advice, []).append(row)
    notes = []
    for advice, found in groups.items():
        first = found[0]
        others = f" and {len(found) - 1} more" if found[1:] else ""
        view = _join([advice], "" if by_default else "your_view")
        remedy = advice.remedy.format(view=f"Tiling(view={view})")
        notes.append(f"{first.path} {first.shape}{others}: {advice.reason}. {remedy}.")
    if len({_join([advice]) for advice in groups}) > 1:
        view = _join(list(groups), "" if by_default else "your_view")
        notes.append(f"All of these together: Tiling(view={view}).")
    return tuple(notes)


def _advise(row: Row) -> _Advice | None:
    """Returns why the default view may not fit a parameter, and one that does."""
    path, shape = row.path.lower(), row.shape
    if "embed" in path or (len(shape) == 2 and shape[0] >= LARGE_VOCABULARY):
        reason = "an embedding, of which a batch excites few rows"
        word = next((x for x in ("embed", "Embed") if x in row.path), _word(row.path))
        return _Advice(reason, "Leave it out: {view}", "without", word)
    if DEPTHWISE.search(path) and len(shape) > 2 and shape[-2] == 1:
        reason = "depthwise: each channel has inputs of its own, which roots would mix"
        word = next((x for x in ("depthwise", "dw") if x in row.path), _word(row.path))
        return _Advice(reason, "Leave it out: {view}", "without", word)
    if is_bias(path):
        return _Advice("a bias, seen as a matrix", "Take {view}", "transformer")
    is_stack = len(shape) in (3, 4) and max(shape[:-2]) > LONGEST_WINDOW
    is_stack |= len(shape) == 3 and "conv" not in path
    is_stack |= len(shape) > 4 and len(set(shape[:-2])) > 1
    if not is_stack or (len(shape) == 3 and OUTPUT.search(path)):
        return None
    if len(shape) == 3 and PROJECTION.search(path):
        reason = "attention, whose heads lie in the rows"
        return _Advice(reason, "Take {view}", "transformer")
    names = [name for name in row.path.split("/") if name not in PLAIN]
    attention = ", Tiling(view=views.transformer) for attention"
    return _Advice(
        f"axes 0 to {len(shape) - 2} are merged into the rows",
        "{view} if axis 0 counts layers or experts" + attention * (len(shape) == 3),
        "scanned",
        (names or [row.path])[0],
    )


def _word(path: str, others: Sequence[str] = ()) -> str:
    """Returns the part of a path that tells a parameter from others."""
    for name in reversed(path.split("/")):
        tells = len(name) > 1 and not name.isdigit() and name not in PLAIN
        if tells and not any(name in other for other in others):
            return name
    return path


def _join(advice: Sequence[_Advice], view: str = "") -> str:
    """Writes one view that follows all advice, around a given one."""
    if any(a.view == "transformer" for a in advice):
        view = "views.transformer"
    for name in ("scanned", "without"):
        words = {a.word: None for a in advice if a.view == name}
        if words:
            arguments = [*map(repr, words), *([f"view={view}"] if view else [])]
            view = f"views.{name}({', '.join(arguments)})"
    return view
