"""What a GPU would launch: exact counts, which no noise can move; no GPU is needed."""

from typing import NamedTuple

import jax
import optax
import pytest

from benchmarks.cost import counts
from benchmarks.gpu import programs, target
from tests.compiled.models import CASES, compile_update

# The Makefile reads this line.
WITH_JAX = "0.10.2"
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plugin")]
MOST_TIMES = 2.6  # the least bytes, of a plain step: each array read and written once


class Counts(NamedTuple):
    """What is pinned."""

    operations: int  # of a plain step: kernels, matmuls, copies, one conditional
    matmuls: int  # cuBLAS calls among them: 2 a stack
    refresh_operations: int  # of a step that refreshes the roots
    refresh_matmuls: int  # among them


# Pinned for an A100. A count that differs is no error as such: whoever changes it
# writes the new one here, and why.
#
# Where they come from. matmuls: two a stack. refresh_matmuls: those and the products
# that test_pinned_counts.py derives, but XLA joins two that share an operand into one
# call, unless they are large. Kernels: one for each leaf without tiles (107 of
# ResNet-50's 161); one for each root and each scale, which a plain step touches; the
# rest cut gradients into tiles, take norms and put directions together, as XLA fuses
# it.
PINNED = {
    ("resnet50", "series"): Counts(254, 16, 344, 57),
    ("resnet50", "whitening"): Counts(240, 16, 409, 72),
    ("transformer", "series"): Counts(97, 10, 161, 40),
    ("transformer", "whitening"): Counts(89, 10, 205, 48),
}


@pytest.mark.parametrize("device", target.DEVICES)
@pytest.mark.parametrize(("model", "rule"), CASES)
def test_an_update_is_one_graph_without_copies_of_roots(model, rule, device):
    params, state, program = compile_update(model, rule, device)
    plain, refresh = programs.plain_and_refresh(program.text)
    assert refresh is not None
    assert refresh["cusolver_calls"] == refresh["other_calls"] == 0
    graphs = {"cuda_graphs": 1, "outside_of_graphs": {}}
    assert programs.graph_counts(program.thunks) == graphs
    # Scales may be copied, 4 bytes a root, but no matrix.
    roots = jax.tree.leaves(optax.tree.get(state, "roots"))
    assert plain["root_copied_bytes"] < min(4 * x.size for x in roots if x.ndim > 1)
    least = counts.least_bytes(state, params)["plain"] + counts.tree_bytes(params)
    assert least < plain["traffic_bytes"] <= MOST_TIMES * least
    if device == "A100":
        assert PINNED[model, rule] == Counts(
            plain["operations"],
            plain["matmuls"],
            refresh["operations"],
            refresh["matmuls"],
        )
