"""Padding is exact: a padded tile steps as the same tile without padding."""

import jax
import numpy as np
import optax
import pytest

from jorge_optax import BinomialSeries, Tiling, Whitening, jorge, lengths
from tests.helpers.trees import QUICK

SERIES, WHITENING = BinomialSeries(), Whitening(early_refreshes=0)
LENGTHS = {"SGD": "sgd", "Adam": lengths.Adam(), "Shape": lengths.Shape(), "None": None}
TABLE = {
    f"{type(rule).__name__}, {name}": {"rule": rule, "grafting": length}
    for rule in (SERIES, WHITENING)
    for name, length in LENGTHS.items()
} | {
    "BinomialSeries, damped": {"rule": BinomialSeries(damping=0.1)},
    "Whitening, damped": {"rule": Whitening(early_refreshes=0, damping=0.1)},
}
# A matrix in four tiles of 7 x 9, and the first and the last of them, of 6 x 8.
WHOLE = (13, 17)
PARTS = {"first": np.s_[:, 0:7, 0:9], "last": np.s_[:, 7:13, 9:17]}


def gradients():
    """Of a padded matrix, of its tiles as matrices of their own, and of zero rows."""
    whole = np.random.default_rng(0).normal(size=(7, *WHOLE)).astype(np.float32)
    whole[2][PARTS["last"][1:]] = 0  # no gradient in one tile
    parts = {key: whole[place].copy() for key, place in PARTS.items()}
    zeros = np.pad(whole, ((0, 0), (0, 1), (0, 1)))  # whose tiles are full
    return {"whole": whole, "zeros": zeros, **parts}


def lost(roots):
    """Makes the last tile of the whole, and its equal of 6 rows, lose their roots."""
    for key, index in {"7x9": 4, "6x8": 0}.items():
        if key in roots:
            signs = np.where(np.arange(len(roots[key].unit)) == index, -1, 1)
            unit = signs[:, None, None] * roots[key].unit
            roots[key] = roots[key]._replace(unit=unit)


def trainer(case, **options):
    """Training that returns all steps."""
    options = {"update_interval": 2, "tiling": Tiling(9), **options, **TABLE[case]}
    optimizer = jorge(1.0, **options)

    def step(state, gradient):
        return optimizer.update(gradient, state)[::-1]

    def train(grads):
        state = optimizer.init(jax.tree.map(lambda x: x[0], grads))
        if isinstance(options["rule"], BinomialSeries):
            lost(optax.tree.get(state, "roots").left)
        return jax.lax.scan(step, state, grads)[1]

    return jax.jit(train, compiler_options=QUICK)


def largest_error(case, steps, whole="whole"):
    """Of the tiles of the whole, relative to the parts; by shape rows count."""
    errors = []
    for key, place in PARTS.items():
        found, expected = np.float64(steps[whole][place]), np.float64(steps[key])
        if isinstance(TABLE[case].get("grafting"), lengths.Shape):
            rows = expected.shape[1], steps[whole].shape[1]
            expected = expected * np.sqrt(rows[0] / rows[1])
        errors.append(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    return max(errors)


@pytest.mark.parametrize("case", TABLE)
def test_a_padded_matrix_steps_as_its_tiles_without_padding(case):
    train, grads = trainer(case), gradients()
    steps = train(grads)
    assert largest_error(case, steps) < 1e-5
    # Negative controls: another gradient; rows of zeros, which count in a mean.
    if "Whitening" in case or "Shape" in case or "damped" in case:
        assert largest_error(case, steps, "zeros") > 1e-3
    grads["whole"][1] *= -1
    assert largest_error(case, train(grads)) > 1e-2
