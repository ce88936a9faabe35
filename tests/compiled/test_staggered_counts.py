"""Exact counts of updates with staggered refreshes, and of every step's operations."""

import math
from typing import NamedTuple

import jax
import optax
import pytest

from benchmarks.cost import counts
from benchmarks.gpu.staggering import flops_of_slots
from jorge_optax import jorge
from jorge_optax._staggering import cut_into_parts
from tests.compiled.models import MODELS, RULES


class Counts(NamedTuple):
    """What is pinned, at interval 10."""

    # One for stacks with the same slots, unless these are all slots; and a GPU's one
    # that repairs numbers out of range.
    conditionals: int
    products: int  # of every step
    least_flops: int  # of the step of an interval with fewest operations
    most_flops: int  # of the one with most
    over_at_once: float  # operations of all refreshes over those of all at once


PINNED = {
    # Nine stacks of ten have fewer than ten parts, no two of them the same slots.
    # Products: 20, and 2 Gram matrices and 5 products for the one that is refreshed at
    # each step, 34 tiles of 256 x 256.
    ("resnet50", "series"): Counts(10, 27, 40_335_938_688, 41_811_407_552, 1.0052),
    # One conditional more, of the first steps. Products: 20, 5 and 5.
    ("resnet50", "whitening"): Counts(11, 30, 43_912_107_136, 45_766_783_680, 1.0052),
    # Five stacks, all of fewer than ten tiles.
    ("transformer", "series"): Counts(6, 10, 498_073_600, 605_552_640, 1.0),
    ("transformer", "whitening"): Counts(7, 10, 581_959_680, 711_458_816, 1.0),
}
CASES = list(PINNED)


def found(model, rule) -> tuple[Counts, list[int], counts.Flops]:
    params, early = MODELS[model](), rule == "whitening"
    staggered, plain = (
        jorge(0.1, rule=RULES[rule], update_interval=10, stagger=stagger)
        for stagger in (True, False)
    )
    state = jax.eval_shape(staggered.init, params)
    products = counts.count_products(
        jax.make_jaxpr(staggered.update)(params, state, params).jaxpr
    )
    slots = flops_of_slots(staggered, params, 10, early=early)
    at_once = counts.matmul_flops(plain.update, params, state, params)
    over = sum(own - at_once.plain for own in slots) / at_once.refresh
    own = Counts(
        products.conditionals,
        len(products.plain),
        min(slots),
        max(slots),
        round(over, 4),
    )
    return own, slots, at_once


@pytest.mark.parametrize(("model", "rule"), CASES)
def test_counts_are_the_pinned_ones(model, rule):
    own, slots, at_once = found(model, rule)
    assert own == PINNED[model, rule]
    # Every step has what a plain step has; none has what a refresh at once has.
    assert at_once.plain <= min(slots)
    assert max(slots) < at_once.plain + at_once.refresh / 5


@pytest.mark.parametrize(("model", "rule"), CASES)
def test_steps_follow_from_the_parts(model, rule):
    """The share of a stack's refresh that a step has is that of its tiles."""
    params = MODELS[model]()
    optimizer = jorge(0.1, rule=RULES[rule], update_interval=10, stagger=True)
    state = jax.eval_shape(optimizer.init, params)
    roots = optax.tree.get(state, "roots")
    tiles = {key: len(sides.left) for key, sides in roots.items()}
    parts = cut_into_parts(tiles, 10)
    assert sum(own.number == 10 for own in parts.values()) == (model == "resnet50")
    _, slots, at_once = found(model, rule)
    vain = sum(own.size * own.number - tiles[key] for key, own in parts.items())
    assert vain <= 0.01 * sum(tiles.values())
    refreshed = sum(slots) - 10 * at_once.plain
    assert math.isclose(refreshed, at_once.refresh, rel_tol=0.01)
    # The negative control: parts of another interval.
    with pytest.raises(ValueError, match="conditionals of"):
        flops_of_slots(optimizer, params, 2, early=rule == "whitening")
