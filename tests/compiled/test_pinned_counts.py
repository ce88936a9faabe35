"""Exact counts of the update of two models: a regression test without noise.

The update is traced and lowered for a GPU; nothing is compiled or run. A pinned number
that differs is no error as such: whoever changes it writes the new one here, and why.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest

from benchmarks.cost import counts
from jorge_optax import Numerics, jorge
from tests.compiled.models import CASES, MODELS, RULES


class Counts(NamedTuple):
    """What is counted."""

    stacks: int  # distinct shapes of tiles
    products: int  # dot_general in every step: 2 a stack, left @ G @ right
    refresh_products: int  # those that a refresh has beside them
    conditionals: int  # one, whatever the number of stacks
    flops: int  # of products: 2 R C (R + C) for a tile of R x C
    refresh_flops: int  # of refresh_products
    state_bytes: int  # float32: roots and momenta, one count


# Number of stacks, operations of a plain step, bytes of the state, and characters of
# the lowered text. The rest follows from the shapes of tiles: see `derived`.
PINNED = {
    ("resnet50", "series"): (8, 25_835_639_936, 413_897_336, 395_753),
    ("resnet50", "whitening"): (8, 25_835_639_936, 311_426_936, 424_028),
    ("transformer", "series"): (5, 334_495_744, 8_215_180, 164_232),
    ("transformer", "whitening"): (5, 334_495_744, 6_347_404, 186_132),
}
# Other versions of jax write the same program in other words. Fewer are no regression.
MORE_CHARACTERS = 1.03


def counted(params, optimizer) -> tuple[Counts, int]:
    """The counts, and the characters of the lowered text."""
    state = jax.eval_shape(optimizer.init, params)
    traced = jax.jit(optimizer.update).trace(params, state)
    found = counts.count_products(traced.jaxpr.jaxpr)
    own = Counts(
        stacks=len(optax.tree.get(state, "roots").left),
        products=len(found.plain),
        refresh_products=len(found.refresh),
        conditionals=found.conditionals,
        flops=found.flops.plain,
        refresh_flops=found.flops.refresh,
        state_bytes=counts.tree_bytes(state),
    )
    return own, len(traced.lower(lowering_platforms=("cuda",)).as_text())


def derived(params, rule) -> Counts:
    """The counts as formulas of the shapes of tiles."""
    state = jax.eval_shape(jorge(0.1, rule=RULES[rule]).init, params)
    roots = optax.tree.get(state, "roots")
    whitens = rule == "whitening"
    sides, applied, observed, refreshed, kept = set(), 0, 0, 0, 0
    for key, left in roots.left.items():
        n, rows, _ = left.unit.shape
        columns = roots.right[key].unit.shape[1]
        sides |= {rows, columns}
        applied += n * rows * columns * (rows + columns)
        # Gram matrices; whitening has whitened by each side, and by both, before.
        both = rows + columns + min(rows, columns)
        observed += n * rows * columns * (rows + columns + whitens * both)
        refreshed += n * 5 * (rows**3 + columns**3)
        # Two roots with their scales, and the momentum of the direction and SGD's,
        # which whitening shares.
        momenta = (1 if whitens else 2) * rows * columns
        kept += n * (rows**2 + columns**2 + 2 + momenta)
    # One momentum of the others, and one count.
    others = jax.tree.leaves(optax.tree.get(state, "others"))
    kept += sum(leaf.size for leaf in others) + 1
    stacks = len(roots.left)
    return Counts(
        stacks=stacks,
        products=2 * stacks,
        # What each stack observes; for each length of side, of all stacks, 5 products.
        refresh_products=(5 if whitens else 2) * stacks + 5 * len(sides),
        conditionals=1,
        flops=2 * applied,
        refresh_flops=2 * (observed + refreshed),
        state_bytes=4 * kept,
    )


@pytest.mark.parametrize(("model", "rule"), CASES)
def test_counts_are_the_pinned_and_the_derived_ones(model, rule):
    params = MODELS[model]()
    found, characters = counted(params, jorge(0.1, rule=RULES[rule]))
    assert found == derived(params, rule)
    *pinned, most = PINNED[model, rule]
    assert [found.stacks, found.flops, found.state_bytes] == pinned
    assert characters <= MORE_CHARACTERS * most


def after_jorge(function):
    return optax.chain(
        jorge(0.1), optax.stateless(lambda updates, _: function(updates))
    )


def one_product_more(updates):
    head = updates["head"]
    return {**updates, "head": head @ jnp.eye(head.shape[1])}


def one_conditional_more(updates):
    larger = jnp.max(updates["head"]) > 1
    return jax.lax.cond(larger, lambda x: x, optax.tree.zeros_like, updates)


@pytest.mark.parametrize(
    ("optimizer", "more", "expected"),
    [
        (after_jorge(one_product_more), {}, {"products", "flops"}),
        (after_jorge(one_conditional_more), {}, {"conditionals"}),
        (jorge(0.1, numerics=Numerics(roots="bfloat16")), {}, {"state_bytes"}),
        # A stack of its own.
        (
            jorge(0.1),
            {"more": jax.ShapeDtypeStruct((40, 30), "float32")},
            set(Counts._fields) - {"conditionals"},
        ),
    ],
)
def test_more_of_anything_is_found(optimizer, more, expected):
    params = MODELS["transformer"]()
    found, _ = counted(params | more, optimizer)
    both = zip(Counts._fields, found, derived(params, "series"), strict=True)
    assert {name for name, own, usual in both if own != usual} == expected
