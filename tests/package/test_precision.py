"""Products that apply roots and products that refresh them, each in its precision.

On a CPU all precisions compute the same, so these tests read the traced program.
"""

import collections

import jax
import jax.numpy as jnp
import pytest

from jorge_optax import BinomialSeries, Numerics, Whitening, jorge, scale_by_jorge

HIGHEST, HIGH = jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGH
DEFAULT = jax.lax.Precision.DEFAULT
PARAMS = {"a": jnp.ones((6, 4)), "b": jnp.ones((5, 5))}
SERIES, WHITENING = BinomialSeries(), Whitening()
# Where the products of a step may be, and their scopes.
SCOPES = {"jorge/step": "apply", "jorge/refresh_roots": "refresh"}


def precisions(jaxpr, scope=""):
    """Returns numbers of products by what they are for and their precision."""
    found = collections.Counter()
    for equation in jaxpr.eqns:
        within = f"{scope}/{equation.source_info.name_stack}"
        if equation.primitive.name == "dot_general":
            (kind,) = {kind for name, kind in SCOPES.items() if name in within}
            found[kind, *set(equation.params["precision"])] += 1
        for value in jax.tree.leaves(equation.params):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found += precisions(inner, within)
    return found


@pytest.mark.parametrize(
    ("rule", "numerics", "applied", "refreshed"),
    [
        (SERIES, None, HIGHEST, HIGHEST),
        (WHITENING, None, HIGH, HIGHEST),
        (SERIES, "reduced", DEFAULT, HIGHEST),
        (WHITENING, "reduced", DEFAULT, HIGHEST),
        (WHITENING, "exact", HIGHEST, HIGHEST),
        (SERIES, Numerics(apply="high"), HIGH, HIGHEST),
        (WHITENING, Numerics(apply="highest", refresh="default"), HIGHEST, DEFAULT),
    ],
)
def test_each_product_has_the_precision_of_its_kind(rule, numerics, applied, refreshed):
    optimizer = jorge(0.1, rule=rule, numerics=numerics)
    state = jax.eval_shape(optimizer.init, PARAMS)
    found = precisions(jax.make_jaxpr(optimizer.update)(PARAMS, state).jaxpr)
    assert found.pop(("apply", applied)) == 4
    assert found.pop(("refresh", refreshed)) >= 10
    # Rounding errors are bounded exactly.
    assert set(found) <= {("refresh", HIGHEST)}
    assert not found or (rule, numerics) == (WHITENING, "reduced")


def test_the_whitening_rule_knows_the_precision_of_its_refresh():
    """Roots get a multiple of the identity that exceeds the rounding of products."""

    def root(**precision):
        optimizer = scale_by_jorge(rule=WHITENING, numerics=Numerics(**precision))
        _, state = jax.jit(optimizer.update)(PARAMS, optimizer.init(PARAMS))
        return state.roots.left["6x4"].unit

    plain = root()
    assert (root(apply="high") == plain).all()
    assert (root(refresh="high") != plain).any()
