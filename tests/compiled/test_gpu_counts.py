"""What a GPU would launch: exact counts, which no noise can move; no GPU is needed."""

import functools
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from benchmarks.cost import updates
from benchmarks.gpu import compile as gpu_compile
from benchmarks.gpu import programs, target
from jorge_optax import jorge
from tests.compiled.models import MODELS, RULES

WITH_JAX = "0.10.2"


class Counts(NamedTuple):
    """What is pinned."""

    operations: int  # of a plain step: kernels, matmuls, copies, one conditional
    matmuls: int  # cuBLAS calls among them: 2 a stack
    copied_bytes: int  # of a plain step
    refresh_operations: int  # of a step that refreshes the roots
    refresh_matmuls: int  # among them


# Pinned where jax's plugin for CUDA is there. A count that differs is no error as such:
# whoever changes it writes the new one here, and why.
#
# Where they come from. matmuls: two a stack. refresh_matmuls: those and the products
# that test_pinned_counts.py derives, but XLA joins two that share an operand into one
# call, unless they are large. Kernels: one for each leaf without tiles (107 of
# ResNet-50's 161); one for each root, which a plain step touches (20 for 10 stacks);
# the rest cut gradients into tiles, take norms and put directions together, as XLA
# fuses it. 4 copied bytes are a count.
PINNED = {
    # 20 + 50 products, none joined.
    ("resnet50", "series"): Counts(197, 20, 0, 329, 70),
    # One momentum less; 20 + 80 products, one joined for each stack and one more.
    ("resnet50", "whitening"): Counts(208, 20, 0, 426, 89),
    # 26 leaves more, of which 17 have no tiles; the same stacks but for their numbers.
    # Among the operations, which fell by two, is now a copy of the count.
    ("deeplabv3_resnet50", "series"): Counts(217, 20, 4, 342, 70),
    # 10 + 45 products, 7 of them joined with others.
    ("transformer", "whitening"): Counts(60, 10, 0, 179, 48),
    # 10 + 41 products, three times two of them joined.
    ("transformer", "series"): Counts(57, 10, 4, 154, 48),
}


@pytest.fixture
def plugin():
    """Skips where nothing can be compiled for a GPU, unless GPU_COUNTS forbids it."""
    if os.environ.get("GPU_COUNTS"):
        assert target.why_not() is None
        assert jax.__version__ == WITH_JAX
        return
    pytest.importorskip(
        "jax_cuda12_plugin",
        reason="jax's plugin for CUDA is missing: install the extra `gpu`, with the "
        "plugin of jax's own version, to compile for a GPU",
    )
    if jax.__version__ != WITH_JAX:
        pytest.skip(f"The counts are those of jax {WITH_JAX}; others fuse otherwise.")


def compiled(optimizer, params) -> target.Program:
    state = jax.eval_shape(optimizer.init, params)
    step = functools.partial(updates.update, optimizer)
    return target.compile_for("A100", step, (params, state, params), (0, 1))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "rule"), PINNED)
def test_counts_are_the_pinned_ones(plugin, model, rule):
    optimizer = jorge(0.1, 0.9, 1e-3, rule=RULES[rule])
    program = compiled(optimizer, MODELS[model]())
    plain, refresh = programs.plain_and_refresh(program.text)
    assert refresh is not None
    assert PINNED[model, rule] == Counts(
        plain["operations"],
        plain["matmuls"],
        plain["copied_bytes"],
        refresh["operations"],
        refresh["matmuls"],
    )
    assert plain["root_copied_bytes"] == 0
    assert refresh["cusolver_calls"] == refresh["other_calls"] == 0
    graphs = {"cuda_graphs": 1, "outside_of_graphs": {}}
    assert programs.graph_counts(program.thunks) == graphs


@pytest.mark.slow
def test_the_update_of_a_whole_step_is_one_graph(plugin, monkeypatch):
    small = {"resnet50": {"batch": 2, "size": 64}}
    monkeypatch.setattr(gpu_compile, "SIZES", small)
    own = gpu_compile.measure_step("resnet50", "jorge", "A100")
    assert own["of_these_in_one_graph"] == own["optimizer_operations"] > 200
    assert own["conditional_in_that_graph"]
    sgd = gpu_compile.measure_step("resnet50", "sgd", "A100")
    assert sgd["of_these_in_one_graph"] < 0.5 * sgd["optimizer_operations"]


@pytest.mark.slow
def test_a_decomposition_is_found(plugin):
    """The negative control: exact roots in a conditional, as Shampoo has them."""

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
