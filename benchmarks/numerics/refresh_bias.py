"""Measures how far the paper's refresh is from the exact root of its statistic.

Question: after many refreshes with dynamic beta2, how far is Jorge's root from the
exact inverse fourth root (by eigh) of the statistic with the same sequence of beta2?
Method: float64, independent gradients G = A Z with Z standard normal. In the commuting
case Z and A are diagonal, so that all matrices commute; in the other A is a fixed
matrix of condition 10. The norm of the difference over that of the exact root, mean
over five seeds.
Answer: docs/algorithm.md, from benchmarks/results/refresh_bias.json.

    python -m benchmarks.numerics.refresh_bias
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import results
from jorge_optax import _algorithm

SIDES = results.sized((1, 2, 4, 16, 64), (1, 4))
REFRESHES = results.sized((10, 50, 200, 1000), (10,))
SEEDS = range(results.sized(5, 1))


@jax.jit
def refresh(root: jax.Array, gram: jax.Array) -> jax.Array:
    """Refreshes a root by the formula that training runs, without its guards."""
    matmul = functools.partial(jnp.matmul, precision="highest")
    x = _algorithm.excitation(root, gram, matmul)
    ratio = _algorithm.ratio(jnp.linalg.norm(x))
    return _algorithm.growth(ratio) * _algorithm.expand(root, x, ratio, matmul)


def bias_after(refreshes: int, side: int, commuting: bool, seed: int) -> float:
    """Relative error of the root after some refreshes."""
    rng = np.random.default_rng(seed)
    scales = np.geomspace(1, 0.1, side) if side > 1 else np.ones(1)
    rotation = np.linalg.qr(rng.normal(size=(side, side)))[0]
    root = np.eye(side) * 1e-6**-0.25
    statistic = np.eye(side) * 1e-6
    for _ in range(refreshes):
        if commuting:
            gradient = np.diag(scales * rng.normal(size=side))
        else:
            gradient = (rotation * scales) @ rng.normal(size=(side, side))
        gram = gradient @ gradient.T
        norm = np.linalg.norm(np.linalg.matrix_power(root, 4) @ gram)
        beta2 = norm / (norm + 1)
        statistic = beta2 * statistic + (1 - beta2) * gram
        root = np.asarray(refresh(jnp.asarray(root), jnp.asarray(gram)))
    values, vectors = np.linalg.eigh(statistic)
    exact = (vectors * values**-0.25) @ vectors.T
    return float(np.linalg.norm(root - exact) / np.linalg.norm(exact))


def main() -> None:
    """Measures everything and writes the JSON."""
    jax.config.update("jax_enable_x64", True)
    rows = []
    for commuting in (True, False):
        for side in SIDES:
            for refreshes in REFRESHES:
                errors = [bias_after(refreshes, side, commuting, s) for s in SEEDS]
                rows.append(
                    {
                        "commuting": commuting,
                        "side": side,
                        "refreshes": refreshes,
                        "relative_error": errors,
                    }
                )
                print(commuting, side, refreshes, f"{np.mean(errors):.4f}")
    results.write("refresh_bias", rows, seeds=list(SEEDS))


if __name__ == "__main__":
    main()
