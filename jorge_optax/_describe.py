"""What Jorge does with each parameter, what it costs, what to change; and verdicts."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from jorge_optax._errors import by_path
from jorge_optax._optimizer import jorge
from jorge_optax._step import JorgeState, option_text, required_settings
from jorge_optax._tiles import LeafPlan, PyTree, Tiling, cut
from jorge_optax.views import (
    EMBEDDINGS,
    PROJECTION,
    Shape,
    Without,
    default_view,
    has_word,
)

# A state of more than so many times the parameter is marked. Square tiles with two
# momenta have 4 times, the last layer of a classifier may have 10.
OUT_OF_PROPORTION = 12
# Axes of the window of a convolution are at most so long.
LONGEST_WINDOW = 16
# An embedding has at least so many rows, where its name does not tell.
LARGE_VOCABULARY = 16384
# Names of attention's last projection, whose default view is right.
OUTPUT = re.compile(r"(o|out|output|proj|out_proj|o_proj)")
# Names of depthwise convolutions; by shape, one of a grey image looks the same.
DEPTHWISE = re.compile(r"depthwise|(^|[^a-z])dw")
# Parts of a path that do not tell one parameter from another.
PLAIN = ("kernel", "weight", "value", "params")
# Roots whose eigenvalues are all within this factor hardly turn a gradient: in
# docs/diagnostics.md, by a cosine above 0.98.
BARELY_MOVED = 1.5
# Beyond it a root is close to singular in float32.
LARGEST_CONDITION = 1e5
# A direction with a smaller cosine has little in common with the gradient.
LEAST_COSINE = 0.02


@dataclasses.dataclass(frozen=True)
class LeafDescription:
    """One row of :func:`describe`'s table.

    Attributes:
      path: Path of the parameter.
      shape: Shape of the parameter.
      matrix: Its matrix view, ``"576x128"``, after the batch if there is one.
      tiles: Number and shape of its tiles, ``"3 of 192x128"``.
      parameter_bytes: Bytes of the parameter.
      state_bytes: Bytes of its roots and momenta.
      marked: Whether the state is out of proportion, or the shards are thin.
      preconditioned: ``"yes"``, or why not.
    """

    path: str
    shape: Shape
    matrix: str
    tiles: str
    parameter_bytes: int
    state_bytes: int
    marked: bool
    preconditioned: str


@dataclasses.dataclass(frozen=True, repr=False)
class Description:
    """What :func:`describe` returns; printing it shows the table.

    Attributes:
      leaves: One row for each parameter.
      parameter_bytes: Bytes of the parameters.
      state_bytes: Bytes of Jorge's state, exact.
      sgd_bytes: Bytes of the state of SGD with momentum.
      adamw_bytes: Bytes of the state of AdamW.
      notes: What to reconsider, each with a remedy.
      rule: The rule that the roots are kept for.
    """

    leaves: tuple[LeafDescription, ...]
    parameter_bytes: int
    state_bytes: int
    sgd_bytes: int
    adamw_bytes: int
    notes: tuple[str, ...]
    rule: str

    def to_dict(self) -> dict[str, Any]:
        """Returns numbers, lists and strings only, ready for JSON."""
        return dataclasses.asdict(self)

    def __repr__(self) -> str:
        """Returns the table."""
        rows: list[tuple[str, ...]] = [
            (
                "parameter",
                "shape",
                "matrix",
                "tiles",
                "state",
                "ratio",
                "preconditioned",
            )
        ]
        for leaf in self.leaves:
            shape = "x".join(map(str, leaf.shape)) or "scalar"
            ratio = f"{leaf.state_bytes / max(leaf.parameter_bytes, 1):.1f} x"
            cells = (leaf.path, shape, leaf.matrix, leaf.tiles, _size(leaf.state_bytes))
            rows.append((*cells, ratio + " !" * leaf.marked, leaf.preconditioned))
        over = (
            f"{self.state_bytes / max(other, 1):.2f} x {name}'s {_size(other)}"
            for name, other in (("SGD", self.sgd_bytes), ("AdamW", self.adamw_bytes))
        )
        number = len(self.leaves)
        lines = [
            *table(rows),
            "",
            f"{number} parameter{'s'[: number != 1]} of {_size(self.parameter_bytes)}",
            f"state {_size(self.state_bytes)} by {self.rule}: {', '.join(over)}",
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligns the cells of rows, the first of which is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    ruled = [rows[0], ["-" * width for width in widths], *rows[1:]]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in ruled]


def describe(
    params: PyTree, tx: optax.GradientTransformation | None = None
) -> Description:
    """Describes what Jorge does with each parameter, and what it costs in memory.

    Allocates nothing: parameters may be arrays or ``jax.ShapeDtypeStruct``. The column
    ``ratio`` has the bytes of the state over those of the parameter, with a ``!`` where
    it is out of proportion. Notes name parameters that their view does not fit, such as
    embeddings and stacked layers, and the :class:`Tiling` that does.

    Args:
      params: A pytree of parameters: a dict, an ``nnx`` state or module's state, an
        Equinox module (filtered to its arrays).
      tx: What :func:`jorge_optax.jorge` or a recipe returned; ``None`` is ``jorge``
        with its defaults.

    Returns:
      A :class:`Description`; print it.

    Examples:
      >>> import jax
      >>> from jorge_optax import describe
      >>> describe({
      ...   "conv": jax.ShapeDtypeStruct((3, 3, 64, 128), "float32"),
      ...   "bias": jax.ShapeDtypeStruct((128,), "float32"),
      ... })
      parameter  shape       matrix   tiles         state   ratio  preconditioned
      ---------  ----------  -------  ------------  ------  -----  ----------------
      bias       128         -        -             512 B   1.0 x  no: not a matrix
      conv       3x3x64x128  576x128  3 of 192x128  1.2 MB  4.2 x  yes
      <BLANKLINE>
      2 parameters of 295.4 kB
      state 1.2 MB by BinomialSeries(): 4.16 x SGD's 295.4 kB, 2.08 x AdamW's 590.9 kB
    """
    tx = jorge(0.0) if tx is None else tx
    settings = required_settings("describe", tx)
    plan = settings.layout.plan(params, settings.tiling)
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    state = jax.eval_shape(tx.init, structs)
    ours = find_state("describe", state)
    of_others, places = by_path(ours.others), settings.layout.places(plan)
    fields = (*ours.roots, ours.average, ours.trace, ours.length, ours.adapted)
    rows = []
    for own, leaf in zip(plan.leaves, jax.tree.leaves(structs), strict=True):
        if own.grid is None:
            at = f"/{own.path}"
            kept = (x for path, x in of_others.items() if f"/{path}".endswith(at))
            size = _bytes([x for x in kept if x.shape == leaf.shape])
        else:
            arrays = jax.tree.leaves([field[own.stack] for field in fields])
            share = len(places[own.path][1]) / arrays[0].shape[0]
            size = round(share * _bytes(arrays))
        rows.append(_row(own, leaf, size, settings.tiling))
    return Description(
        leaves=tuple(rows),
        parameter_bytes=_bytes(structs),
        state_bytes=_bytes(state),
        sgd_bytes=_bytes(jax.eval_shape(optax.sgd(1.0, 0.9).init, structs)),
        adamw_bytes=_bytes(jax.eval_shape(optax.adamw(1.0).init, structs)),
        notes=make_notes(rows, settings.tiling),
        rule=option_text(settings.rule),
    )


def find_state(name: str, state: PyTree) -> JorgeState:
    """Returns the one JorgeState in a tree; raises ValueError unless there is one."""
    nodes = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, JorgeState))
    found = [node for node in nodes if isinstance(node, JorgeState)]
    if len(found) != 1:
        raise ValueError(
            f"{name} needs a state with one JorgeState in it, found {len(found)}. Pass "
            "the state of one optimizer made by jorge or a recipe (for an "
            "nnx.Optimizer, its opt_state)."
        )
    return found[0]


def _row(own: LeafPlan, leaf: Any, state_bytes: int, tiling: Tiling) -> LeafDescription:
    matrix = tiles = "-"
    reason, marked = "yes", state_bytes > OUT_OF_PROPORTION * _bytes(leaf)
    if own.grid is not None and own.view is not None:
        batch, rows, columns, height, width, *_, count = own.grid
        of_batch = f"{batch} of " if batch > 1 else ""
        matrix, tiles = f"{of_batch}{rows}x{columns}", f"{count} of {height}x{width}"
        whole = cut(own.shape, own.view, tiling.max_dim)
        thin = own.shape != leaf.shape and own.grid != whole
        marked |= thin
        if thin:
            reason = f"yes, by thin shards of {rows}x{columns}"
    elif len(leaf.shape) < 2:
        reason = "no: not a matrix"
    elif default_view(own.path, leaf.shape) is None:
        reason = "no: a bias, or a side shorter than 2"
    else:
        reason = "no: left out"
    return LeafDescription(
        own.path, leaf.shape, matrix, tiles, _bytes(leaf), state_bytes, marked, reason
    )


class Advice(NamedTuple):
    """Why a view may not fit, and a word to leave out or to view as scanned."""

    reason: str
    leave_out: str = ""
    scanned: str = ""


def make_notes(rows: Sequence[LeafDescription], tiling: Tiling) -> tuple[str, ...]:
    """Groups parameters by what there is to reconsider, and names the remedies."""
    own_view = tiling.view.view if isinstance(tiling.view, Without) else tiling.view
    known = own_view is default_view
    groups: dict[Advice, list[LeafDescription]] = {}
    rooted = [row for row in rows if row.matrix != "-"]
    healthy = [row.path for row in rooted if not row.marked]
    # Modules that hold the projections of an attention.
    attention = {_module(row.path) for row in rooted if PROJECTION.search(row.path)}
    for row in rooted:
        advice = None
        module, (*_, name) = _module(row.path), _names(row.path)
        in_attention = module in attention or "att" in module
        if known and not (in_attention and OUTPUT.fullmatch(name)):
            advice = _advise(row.path, row.shape)
        if advice is None and row.marked:
            advice = Advice(
                f"a state of more than {OUT_OF_PROPORTION} times the parameter, or "
                "thin shards",
                leave_out=_word(row.path, healthy),
            )
        if advice:
            groups.setdefault(advice, []).append(row)
    notes = []
    for advice, found in groups.items():
        others = f" and {len(found) - 1} more" if found[1:] else ""
        name = f"{found[0].path} {found[0].shape}{others}"
        remedy = f"Add {advice.leave_out!r} to leave_out"
        if advice.scanned:
            remedy = (
                f"{remedy_text([advice], tiling)} if axis 0 counts layers or experts"
            )
        elif known:
            remedy = f"Leave it out: {remedy_text([advice], tiling)}"
        notes.append(f"{name}: {advice.reason}. {remedy}.")
    if known and len({remedy_text([advice], tiling) for advice in groups}) > 1:
        notes.append(f"All of these together: {remedy_text(list(groups), tiling)}.")
    return tuple(notes)


def remedy_text(advice: Sequence[Advice], tiling: Tiling) -> str:
    """Writes the tiling that follows advice, as code that runs."""
    words = (a.leave_out for a in advice if a.leave_out)
    out = dict.fromkeys([*tiling.leave_out, *words])
    scanned = dict.fromkeys(a.scanned for a in advice if a.scanned)
    arguments = [f"max_dim={tiling.max_dim}"] * (tiling.max_dim != Tiling().max_dim)
    if scanned:
        arguments.append(f"view=views.scanned({', '.join(map(repr, scanned))})")
    if out:
        arguments.append(f"leave_out={tuple(out)!r}")
    return f"tiling=Tiling({', '.join(arguments)})"


def _advise(path: str, shape: Shape) -> Advice | None:
    """Returns why the default view may not fit a parameter, and what does."""
    if has_word(path, EMBEDDINGS) or (len(shape) == 2 and shape[0] >= LARGE_VOCABULARY):
        return Advice("an embedding, of which a batch excites few rows", _word(path))
    name = path.lower()
    if DEPTHWISE.search(name) and len(shape) > 2 and shape[-2] == 1:
        reason = "depthwise: each channel has inputs of its own, which roots would mix"
        return Advice(reason, _word(path))
    is_stack = len(shape) in (3, 4) and max(shape[:-2]) > LONGEST_WINDOW
    is_stack |= len(shape) == 3 and "conv" not in name
    is_stack |= len(shape) > 4 and len(set(shape[:-2])) > 1
    known = default_view(path, shape)
    merged = known is not None and len(known.rows) == len(shape) - 1
    if not is_stack or not merged:
        return None
    reason = f"axes 0 to {len(shape) - 2} are merged into the rows"
    return Advice(reason, scanned=_names(path)[0])


def _names(path: str) -> list[str]:
    """Returns the parts of a path that tell one parameter from another."""
    return [name for name in path.split("/") if name not in PLAIN] or [path]


def _module(path: str) -> str:
    """Returns the path of the module that a projection is a part of."""
    return path[: path.rindex(_names(path)[-1])].lower()


def _word(path: str, others: Sequence[str] = ()) -> str:
    """Returns the part of a path that tells a parameter from others."""
    for name in reversed(_names(path)):
        tells = len(name) > 1 and not name.isdigit()
        if tells and not any(has_word(other, (name,)) for other in others):
            return name
    return path


def _bytes(tree: PyTree) -> int:
    return sum(
        math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _size(count: int) -> str:
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.1f} {unit}"
    return f"{count} B"


class Diagnostics(dict[str, Any]):
    """What :func:`diagnostics` returns; printing it shows a table and a verdict.

    A dict from ``"dense/kernel/left/norm"`` to an array with one number for each tile
    of that parameter. It is a pytree, and so may leave a jitted function.
    """

    def scalars(self) -> dict[str, float]:
        """Returns one number for each parameter and quantity, for TensorBoard or JSON.

        It is the one to worry about: over tiles and sides the least ``cosine`` and
        ``beta2``, the sum of ``unexcited`` and ``at_risk``, and the largest of others.
        """
        groups: dict[str, list[np.ndarray]] = {}
        for key, value in self.items():
            path, name = key.rsplit("/", 1)
            if name != "cosine":  # the others are of one side
                path = path.rsplit("/", 1)[0]
            numbers = np.asarray(value, np.float64).ravel()
            groups.setdefault(f"{path}/{name}".lstrip("/"), []).append(numbers)
        kinds = {"cosine": np.min, "beta2": np.min}
        kinds |= {"unexcited": np.sum, "at_risk": np.sum}
        return {
            key: float(kinds.get(key.rsplit("/", 1)[-1], np.max)(np.concatenate(parts)))
            for key, parts in groups.items()
        }

    def verdicts(self) -> dict[str, str]:
        """Returns a verdict in words for each parameter with roots."""
        by_path: dict[str, dict[str, float]] = {}
        for key, value in self.scalars().items():
            path, _, name = key.rpartition("/")
            by_path.setdefault(path, {})[name] = value
        return {path: _verdict(numbers) for path, numbers in by_path.items()}

    def __str__(self) -> str:
        """Returns a row for each parameter, and how many have which verdict."""
        scalars, verdicts = self.scalars(), self.verdicts()
        names = ("condition", "asymmetry", "unexcited", "cosine")
        rows: list[tuple[str, ...]] = [("parameter", *names, "verdict")]
        for path, verdict in verdicts.items():
            numbers = (scalars.get(f"{path}/{name}".lstrip("/")) for name in names)
            cells = ("-" if number is None else f"{number:.3g}" for number in numbers)
            rows.append((path, *cells, verdict))
        texts = list(verdicts.values())
        counts = sorted(
            {text: texts.count(text) for text in texts}.items(),
            key=lambda item: -item[1],
        )
        lines = [*table(rows), "", f"{len(texts)} parameters with roots"]
        lines += [f"{number} of {len(texts)}: {text}" for text, number in counts]
        return "\n".join(lines)


jax.tree_util.register_pytree_node(
    Diagnostics,
    lambda report: (list(report.values()), tuple(report)),
    lambda keys, values: Diagnostics(zip(keys, values, strict=True)),
)


def _verdict(numbers: dict[str, float]) -> str:
    """Returns what the numbers of one parameter mean."""
    condition = numbers["condition"]
    if any(math.isnan(number) for number in numbers.values()):
        return "not finite: find the step at which training broke"
    if numbers["at_risk"]:
        return "roots at risk of ascent: keep them in float32, or add damping"
    if condition > LARGEST_CONDITION:
        return "roots close to singular: add damping"
    if condition < BARELY_MOVED:
        return "roots have barely moved: refresh more often"
    if numbers.get("cosine", 1) < LEAST_COSINE:
        return "direction almost at right angles to this gradient: check the loss"
    if numbers["unexcited"]:
        return "healthy, with rows that no gradient has excited (dead units)"
    return "healthy"
