"""Products that apply roots and products that refresh them, each in its precision.

On a CPU all precisions compute the same, so these tests read the traced program.
"""

import collections

import jax
import jax.numpy as jnp
import pytest

from jorge_optax import BinomialSeries, Whitening, jorge, scale_by_jorge
from tests.helpers.errors import saying

HIGHEST, HIGH = jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGH
DEFAULT = jax.lax.Precision.DEFAULT
PARAMS = {"a": jnp.ones((6, 4)), "b": jnp.ones((5, 5))}
RULES = {"series": BinomialSeries(), "whitening": Whitening()}
OWN = {"series": HIGHEST, "whitening": HIGH}  # of roots applied, unless one is given


def precisions(jaxpr, scope=""):
    """Numbers of products by what they are for and their precision."""
    found = collections.Counter()
    for equation in jaxpr.eqns:
        within = f"{scope}/{equation.source_info.name_stack}"
        if equation.primitive.name == "dot_general":
            (kind,) = {
                kind
                for kind in ("refresh_roots", "precondition")
                if f"jorge/{kind}" in within
            }
            found[kind, *set(equation.params["precision"])] += 1
        for value in jax.tree.leaves(equation.params):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found += precisions(inner, within)
    return found


def products_of(optimizer):
    state = optimizer.init(PARAMS)
    jaxpr = jax.make_jaxpr(optimizer.update)(PARAMS, state)
    found = precisions(jaxpr.jaxpr)
    by_kind = {"precondition": set(), "refresh_roots": set()}
    for kind, precision in found:
        by_kind[kind].add(precision)
    assert sum(n for (kind, _), n in found.items() if kind == "precondition") == 4
    assert sum(n for (kind, _), n in found.items() if kind == "refresh_roots") >= 10
    return by_kind["precondition"], by_kind["refresh_roots"]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (None, HIGHEST)),
        ({"precision": None}, (None, HIGHEST)),
        ({"precision": "highest"}, (HIGHEST, HIGHEST)),
        ({"precision": "high"}, (HIGH, HIGH)),
        ({"precision": "high", "refresh_precision": "highest"}, (HIGH, HIGHEST)),
        ({"refresh_precision": HIGH}, (None, HIGH)),
        ({"precision": HIGH, "refresh_precision": "default"}, (HIGH, DEFAULT)),
    ],
)
def test_each_product_has_the_precision_of_its_kind(rule, options, expected):
    def make(factory, **more):
        return factory(rule=RULES[rule], **options, **more)

    for optimizer in (make(jorge, learning_rate=0.1), make(scale_by_jorge)):
        applied, refreshed = expected
        assert products_of(optimizer) == ({applied or OWN[rule]}, {refreshed})


def test_the_whitening_rule_knows_the_precision_of_its_refresh():
    """Roots get a multiple of the identity that exceeds the rounding of products."""

    def root(**precision):
        optimizer = scale_by_jorge(rule=Whitening(), **precision)
        _, state = optimizer.update(PARAMS, optimizer.init(PARAMS))
        return state.roots["6x4"].left

    plain = root()
    assert (root(precision="high", refresh_precision="highest") == plain).all()
    assert (root(refresh_precision="high") != plain).any()


def test_a_refresh_precision_must_be_known():
    message = saying("refresh_precision must be one that", "'fast'", "Choose 'highest'")
    with pytest.raises(ValueError, match=message):
        jorge(0.1, refresh_precision="fast")
