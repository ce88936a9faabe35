"""Whether programs can be compiled for a GPU; none is needed."""

import os

import jax
import pytest

from benchmarks.gpu import target


@pytest.fixture
def plugin(request, no_compilation_cache):
    """Skips where nothing can be compiled for a GPU, unless GPU_COUNTS forbids it.

    The cache cannot read programs of devices that are not there. A module that pins
    counts tells the version of jax that they are of.
    """
    version = getattr(request.module, "WITH_JAX", jax.__version__)
    if os.environ.get("GPU_COUNTS"):
        assert target.why_not() is None
        assert jax.__version__ == version
        return
    pytest.importorskip(
        "jax_cuda12_plugin",
        reason="jax's plugin for CUDA is missing: install the extra `gpu`, with the "
        "plugin of jax's own version, to compile for a GPU",
    )
    if jax.__version__ != version:
        pytest.skip(f"The counts are those of jax {version}; others fuse otherwise.")
