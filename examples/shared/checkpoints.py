"""Checkpoints by orbax: the last one, to resume from, and the best few."""

import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: pathlib.Path, metric: str, *, keep: int):
        best = checkpoint_managers.BestN(
            get_metric_fn=lambda metrics: metrics[metric],
            n=keep,
            keep_checkpoints_without_metrics=False,
        )
        policy = [checkpoint_managers.LatestN(1), best]
        self._manager = ocp.CheckpointManager(
            (folder / "checkpoints").absolute(),
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

    def restore(self, like: Any) -> tuple[Any, int] | None:
        """Returns the last state, shaped and sharded as `like`, and its step."""
        step = self._manager.latest_step()
        if step is None:
            return None
        like = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        return self._manager.restore(step, args=ocp.args.StandardRestore(like)), step

    def close(self) -> None:
        """Ends orbax's threads."""
        self._manager.close()
