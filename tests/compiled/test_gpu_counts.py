"""What a GPU would launch: exact counts, which no noise can move; no GPU is needed."""

import functools
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from benchmarks.cost import counts, updates
from benchmarks.gpu import compile as gpu_compile
from benchmarks.gpu import programs, target
from jorge_optax import jorge
from tests.compiled.models import CASES, MODELS, RULES

WITH_JAX = "0.10.2"
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
    ("resnet50", "series"): Counts(236, 16, 336, 57),
    ("resnet50", "whitening"): Counts(238, 16, 409, 72),
    ("transformer", "series"): Counts(87, 10, 157, 40),
    ("transformer", "whitening"): Counts(87, 10, 204, 48),
}


@pytest.fixture(autouse=True)
def plugin(no_compilation_cache):
    """Skips where nothing can be compiled for a GPU, unless GPU_COUNTS forbids it."""
    # The cache cannot read programs of devices that are not there.
    compilation_cache.reset_cache()
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


@pytest.mark.slow
@pytest.mark.parametrize("device", target.DEVICES)
@pytest.mark.parametrize(("model", "rule"), CASES)
def test_an_update_is_one_graph_without_copies_of_roots(model, rule, device):
    optimizer, params = jorge(0.1, 0.9, 1e-3, rule=RULES[rule]), MODELS[model]()
    state = jax.eval_shape(optimizer.init, params)
    step = functools.partial(updates.update, optimizer)
    program = target.compile_for(device, step, (params, state, params), (0, 1))
    plain, refresh = programs.plain_and_refresh(program.text)
    assert refresh is not None
    assert refresh["cusolver_calls"] == refresh["other_calls"] == 0
    graphs = {"cuda_graphs": 1, "outside_of_graphs": {}}
    assert programs.graph_counts(program.thunks) == graphs
    # Logarithms of scales may be copied, 4 bytes a root, but no matrix.
    scales = [x for x in jax.tree.leaves(optax.tree.get(state, "roots")) if x.ndim == 1]
    assert plain["root_copied_bytes"] <= sum(4 * scale.size for scale in scales)
    least = counts.least_bytes(state, params)["plain"] + counts.tree_bytes(params)
    assert least < plain["traffic_bytes"] <= MOST_TIMES * least
    if device == "A100":
        assert PINNED[model, rule] == Counts(
            plain["operations"],
            plain["matmuls"],
            refresh["operations"],
            refresh["matmuls"],
        )


@pytest.mark.slow
def test_the_update_of_a_whole_step_is_one_graph(monkeypatch):
    small = {"resnet50": {"batch": 2, "size": 64}}
    monkeypatch.setattr(gpu_compile, "SIZES", small)
    own = gpu_compile.measure_step("resnet50", "jorge", "A100")
    assert own["of_these_in_one_graph"] == own["optimizer_operations"] > 200
    assert own["conditional_in_that_graph"]
    sgd = gpu_compile.measure_step("resnet50", "sgd", "A100")
    assert sgd["of_these_in_one_graph"] < 0.5 * sgd["optimizer_operations"]


@pytest.mark.slow
def test_a_decomposition_is_found():
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
