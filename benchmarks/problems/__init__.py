"""Small training problems on which optimizers are compared."""

from collections.abc import Callable

from benchmarks.problems import fashion, resnet, transformer
from benchmarks.problems.problem import Problem

PROBLEMS: dict[str, Callable[[], Problem]] = {
    "mlp": fashion.mlp,
    "autoencoder": fashion.autoencoder,
    "autoencoder_long": fashion.long_autoencoder,
    "resnet": resnet.problem,
    "transformer": transformer.problem,
}

__all__ = ("PROBLEMS", "Problem")
