"""Exact counts of the update of two models: a regression test without noise.

The update is traced and lowered for a GPU; nothing is compiled or run. A count that
differs is no error as such: whoever changes it writes the new one here, and why.
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
    """What is pinned."""

    stacks: int  # distinct shapes of tiles
    products: int  # dot_general in every step: 2 a stack, left @ G @ right
    refresh_products: int  # those that a refresh has beside them
    conditionals: int  # one, whatever the number of stacks
    flops: int  # of products: 2 R C (R + C) for a tile of R x C
    refresh_flops: int  # of refresh_products
    characters: int  # of the lowered text
    state_bytes: int  # float32: roots and momenta, one count


# Where refresh_products come from: what each stack observes, 2 Gram matrices by the
# paper's rule, 5 products by whitening (of the gradient by each side, by both, and 2
# Gram matrices); and for each length of side, of all stacks at once, 5 products.
PINNED = {
    # 8 stacks with the sides 64, 128, 147, 192, 256.
    ("resnet50", "series"): Counts(
        stacks=8,
        products=16,
        refresh_products=41,
        conditionals=1,
        flops=25_835_639_936,
        refresh_flops=158_315_661_166,
        characters=395_753,
        state_bytes=413_897_336,
    ),
    ("resnet50", "whitening"): Counts(
        stacks=8,
        products=16,
        refresh_products=65,
        conditionals=1,
        flops=25_835_639_936,
        refresh_flops=196_888_509_422,
        characters=424_028,
        state_bytes=311_426_936,
    ),
    # 5 stacks with the sides 64, 128, 192, 256.
    ("transformer", "series"): Counts(
        stacks=5,
        products=10,
        refresh_products=30,
        conditionals=1,
        flops=334_495_744,
        refresh_flops=2_696_413_184,
        characters=164_232,
        state_bytes=8_215_180,
    ),
    ("transformer", "whitening"): Counts(
        stacks=5,
        products=10,
        refresh_products=45,
        conditionals=1,
        flops=334_495_744,
        refresh_flops=3_149_398_016,
        characters=186_132,
        state_bytes=6_347_404,
    ),
}
# Other versions of jax write the same program in other words. Fewer are no regression.
MORE_CHARACTERS = 0.03


def counted(params, optimizer) -> Counts:
    state = jax.eval_shape(optimizer.init, params)
    traced = jax.jit(optimizer.update).trace(params, state)
    found = counts.count_products(traced.jaxpr.jaxpr)
    return Counts(
        stacks=len(optax.tree.get(state, "roots").left),
        products=len(found.plain),
        refresh_products=len(found.refresh),
        conditionals=found.conditionals,
        flops=found.flops.plain,
        refresh_flops=found.flops.refresh,
        characters=len(traced.lower(lowering_platforms=("cuda",)).as_text()),
        state_bytes=counts.tree_bytes(state),
    )


def differences(found: Counts, pinned: Counts) -> dict[str, tuple[int, int]]:
    """Found and pinned number, by name, where they differ."""
    both = zip(Counts._fields, found, pinned, strict=True)
    different = {name: (ours, theirs) for name, ours, theirs in both if ours != theirs}
    if found.characters <= (1 + MORE_CHARACTERS) * pinned.characters:
        different.pop("characters", None)
    return different


@pytest.mark.parametrize(("model", "rule"), CASES)
def test_counts_are_the_pinned_ones(model, rule):
    found = counted(MODELS[model](), jorge(0.1, rule=RULES[rule]))
    assert differences(found, PINNED[model, rule]) == {}


@pytest.mark.parametrize(("model", "rule"), CASES)
def test_pinned_counts_follow_from_the_tiles(model, rule):
    """The comments of the table, as formulas."""
    params, pinned = MODELS[model](), PINNED[model, rule]
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
    stacks = len(roots.left)
    assert pinned.products == 2 * stacks
    assert pinned.flops == 2 * applied
    assert pinned.refresh_products == (5 if whitens else 2) * stacks + 5 * len(sides)
    assert pinned.refresh_flops == 2 * (observed + refreshed)
    # One momentum of the others, and one count.
    others = jax.tree.leaves(optax.tree.get(state, "others"))
    kept += sum(leaf.size for leaf in others) + 1
    assert pinned.state_bytes == 4 * kept


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
        (optax.chain(jorge(0.1), optax.clip(1.0)), {}, {"characters"}),
        (jorge(0.1, numerics=Numerics(roots="bfloat16")), {}, {"state_bytes"}),
        (
            jorge(0.1, rule=RULES["whitening"]),
            {},
            {"refresh_products", "refresh_flops", "state_bytes"},
        ),
        # A stack of its own.
        (
            jorge(0.1),
            {"more": jax.ShapeDtypeStruct((40, 30), "float32")},
            set(Counts._fields) - {"conditionals"},
        ),
    ],
)
def test_more_of_anything_is_found(optimizer, more, expected):
    found = counted(MODELS["transformer"]() | more, optimizer)
    names = set(differences(found, PINNED["transformer", "series"]))
    assert expected <= names <= expected | {"characters"}
