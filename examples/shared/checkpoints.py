"""Checkpoints by orbax: the last one, to resume from, and the best few.

Orbax notices a file that is cut short, but not a changed byte in a large array. So each
checkpoint has a file with the SHA-256 of its other files, compared when it is restored.
"""

import hashlib
import json
import pathlib
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import checkpoint_managers

from examples.shared import checks
from examples.shared.run_folder import write_whole

CHECKSUMS = "sha256.json"
CHECKSUMS_LIMIT = 2**26  # bytes
REASON_LIMIT = 200  # characters of a reason in an error


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: pathlib.Path, metric: str, *, keep: int):
        best = checkpoint_managers.BestN(
            get_metric_fn=lambda metrics: metrics[metric],
            n=keep,
            keep_checkpoints_without_metrics=False,
        )
        policy = [checkpoint_managers.LatestN(1), best]
        self._folder = (folder / "checkpoints").absolute()
        self._aside = folder / "corrupt-checkpoints"
        self._manager = ocp.CheckpointManager(
            self._folder,
            # Else orbax infers it from the newest checkpoint, which may be corrupt.
            item_handlers=ocp.StandardCheckpointHandler(),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=checkpoint_managers.AnyPreservationPolicy(policy)
            ),
        )

    def steps(self) -> list[int]:
        """Returns the steps that have a checkpoint."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: Any, metrics: dict[str, float] | None) -> None:
        """Saves a step once. Without metrics it never counts as one of the best."""
        if step in self.steps():
            return
        self._manager.save(step, args=ocp.args.StandardSave(state), metrics=metrics)
        self._manager.wait_until_finished()
        if jax.process_index() == 0:
            write_checksums(self._folder / str(step))

    def restore(
        self, like: Any, fit: Callable[[Any, Any], Any] | None = None
    ) -> tuple[Any, int] | None:
        """Returns the last state, shaped and sharded as `like`, and its step.

        If arrays were saved with other shapes, `fit` makes a state like `like` of what
        was saved.

        A checkpoint that cannot be restored is set aside with a warning, and the one
        before it is taken.

        Raises:
          ValueError: There are checkpoints, but none can be restored.
        """
        structs = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        failed: dict[int, str] = {}
        # Orbax passes over a file that has the name of a step.
        names = [path.name for path in self._folder.iterdir()]
        found = {int(name) for name in names if re.fullmatch("0|[1-9][0-9]*", name)}
        for step in sorted(found, reverse=True):
            try:
                verify_checksums(self._folder / str(step))
                saved = self._with_saved_shapes(step, structs) if fit else structs
                args = ocp.args.StandardRestore(saved)
                state = self._manager.restore(step, args=args)
                if fit and saved is not structs:
                    state = fit(state, like)
            except Exception as error:  # orbax raises many kinds
                failed[step] = str(error).strip()[:REASON_LIMIT] or repr(error)
                continue
            if failed:
                self._set_aside(failed, step)
            return state, step
        if failed:
            raise ValueError(
                f"{self._folder}: no checkpoint can be restored. {_list(failed)} They "
                "are corrupt, or of another version of the program. Put back a copy, "
                "or remove the run's folder to start again."
            )
        return None

    def _with_saved_shapes(self, step: int, structs: Any) -> Any:
        """Returns the structs, with the shapes of the checkpoint where they differ.

        Orbax would refuse other shapes, or cut and pad the arrays without a check.
        """
        metadata = self._manager.item_metadata(step)
        found = ocp.tree.to_flat_dict(getattr(metadata, "tree", metadata), sep=".")
        names = ocp.tree.get_param_names(structs, include_empty_nodes=False)
        if set(found) != set(jax.tree.leaves(names)):
            return structs  # orbax's error says what is missing

        def differs(name: str, leaf: Any) -> bool:
            return tuple(getattr(found[name], "shape", ())) != leaf.shape

        def struct(name: str, leaf: Any) -> Any:
            if not differs(name, leaf):
                return leaf
            whole = NamedSharding(leaf.sharding.mesh, PartitionSpec())
            return jax.ShapeDtypeStruct(found[name].shape, leaf.dtype, sharding=whole)

        if not any(jax.tree.leaves(jax.tree.map(differs, names, structs))):
            return structs
        return jax.tree.map(struct, names, structs)

    def _set_aside(self, failed: dict[int, str], restored: int) -> None:
        """Moves checkpoints away, so that the run can save these steps again."""
        self._aside.mkdir(exist_ok=True)
        for step in failed:
            number = 0
            while (target := self._aside / f"{step}-{number}").exists():
                number += 1
            (self._folder / str(step)).rename(target)
        self._manager.reload()
        warnings.warn(
            f"{self._folder}: {len(failed)} of the newest checkpoints cannot be "
            f"restored. {_list(failed)} They are now in {self._aside}; the run resumes "
            f"from step {restored}.",
            stacklevel=3,
        )

    def close(self) -> None:
        """Ends orbax's threads."""
        self._manager.close()


def write_checksums(folder: pathlib.Path) -> None:
    """Writes the SHA-256 of each file in a checkpoint's folder."""
    sums = {str(p.relative_to(folder)): _checksum(p) for p in _files(folder)}
    write_whole(folder / CHECKSUMS, json.dumps(sums, indent=1, sort_keys=True) + "\n")


def verify_checksums(folder: pathlib.Path) -> None:
    """Compares the files of a checkpoint with their checksums.

    A checkpoint without checksums passes: a kill may come between the two.
    """
    path = folder / CHECKSUMS
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder.")
    if not path.exists():
        return
    sums = checks.read_json(path, CHECKSUMS_LIMIT)
    found = {str(p.relative_to(folder)): p for p in _files(folder)}
    if not isinstance(sums, dict) or not sums:
        raise ValueError(f"{path} has no checksums.")
    for name, checksum in sums.items():
        if name not in found:
            raise ValueError(f"{name} is missing.")
        if _checksum(found[name]) != checksum:
            raise ValueError(f"{name} was changed after it was saved.")


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    paths = sorted(folder.rglob("*"))
    return [p for p in paths if p.is_file() and p != folder / CHECKSUMS]


def _checksum(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _list(failed: dict[int, str]) -> str:
    return " ".join(f"Step {step}: {reason}" for step, reason in failed.items())
