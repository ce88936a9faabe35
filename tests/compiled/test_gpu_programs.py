"""What must not be in a program for a GPU is found where it is."""

import jax
import jax.numpy as jnp
import optax
import pytest

from benchmarks.cost import counts
from benchmarks.gpu import compile as gpu_compile
from benchmarks.gpu import programs, target
from tests.compiled.models import compile_update

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plugin")]


def test_copies_of_roots_are_found():
    """Without donated buffers, the branch that keeps the roots copies them."""
    _, state, program = compile_update("transformer", "series", "A100", donated=())
    plain, _ = programs.plain_and_refresh(program.text)
    roots = optax.tree.get(state, "roots")
    assert plain["root_copied_bytes"] > 0.9 * counts.tree_bytes(roots)


def test_the_update_of_a_whole_step_is_one_graph(monkeypatch):
    small = {"resnet50": {"batch": 2, "size": 64}}
    monkeypatch.setattr(gpu_compile, "SIZES", small)
    own = gpu_compile.measure_step("resnet50", "jorge", "A100")
    assert own["of_these_in_one_graph"] == own["optimizer_operations"] > 200
    assert own["conditional_in_that_graph"]
    sgd = gpu_compile.measure_step("resnet50", "sgd", "A100")
    assert sgd["of_these_in_one_graph"] < 0.5 * sgd["optimizer_operations"]


def test_a_decomposition_is_found():
    """Exact roots in a conditional, as Shampoo has them."""

    def step(flag, x):
        def roots(x):
            return jnp.linalg.eigh(x @ x.T)[1]

        return 2 * jax.lax.cond(flag, roots, lambda x: x, x)

    structs = jax.ShapeDtypeStruct((), bool), jax.ShapeDtypeStruct((64, 64), "f4")
    program = target.compile_for("A100", step, structs, (1,))
    _, refresh = programs.plain_and_refresh(program.text)
    assert refresh is not None
    assert refresh["cusolver_calls"] == 1
    assert "kConditional" in programs.graph_counts(program.thunks)["outside_of_graphs"]
