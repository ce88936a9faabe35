"""Staggered refreshes: each tile at its own step, once in an interval."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    BinomialSeries,
    Preconditioner,
    Sides,
    Tiling,
    Whitening,
    from_adamw,
    from_sgd,
    jorge,
    lengths,
    scale_by_jorge,
)
from jorge_optax._staggering import SLOTS, cut_into_parts
from tests.helpers.contract import (
    assert_close,
    assert_differs,
    assert_same_types,
    random_tree,
    step_of,
    train,
)
from tests.helpers.staggering import Reference, due_tiles
from tests.helpers.whitening_oracle import WhiteningTile

TILING = Tiling(max_dim=8)
SHAPES = {"a": (24, 24), "b": (8, 2, 6), "c": (64, 4), "d": (5, 3), "bias": (24,)}
TILES = {"5x3": 1, "8x4": 8, "8x6": 2, "8x8": 9}
STEPS = 30
PARAMS, *GRADIENTS = [random_tree(seed, shapes=SHAPES) for seed in range(STEPS + 1)]
RULES = {
    "series": BinomialSeries(),
    "momentum": BinomialSeries(preconditions="momentum"),
    "whitening": Whitening(early_refreshes=0),
    "whitening after 5 early refreshes": Whitening(early_refreshes=5),
}


def stepwise(count):
    return jnp.where(count < 9, 3.0, 22.0)


def options(**changes):
    return {"tiling": TILING, "momentum": 0.9, **changes}


def order_of_stacks():
    state = jax.eval_shape(scale_by_jorge(tiling=TILING).init, PARAMS)
    return {key: len(sides.left) for key, sides in state.roots.items()}


def roots_of(state):
    return optax.tree.get(state, "roots")


def reference(rule, interval_at, slots, **changes):
    tiles = order_of_stacks()
    early = getattr(rule, "early_refreshes", 0)
    due = due_tiles(tiles, STEPS, interval_at, slots, early)
    return jorge(0.05, rule=Reference(rule, due), update_interval=1, **changes)


def assert_trains_as(optimizer, expected):
    (ours, state), (theirs, their_state) = (
        train(tx, PARAMS, GRADIENTS) for tx in (optimizer, expected)
    )
    assert_close((ours, roots_of(state)), (theirs, roots_of(their_state)), 2e-5)


def test_the_stacks_are_the_ones_of_the_cases():
    assert order_of_stacks() == TILES


@pytest.mark.parametrize(
    ("rule", "interval"),
    [
        ("series", 2),
        ("series", 3),
        ("series", 7),
        ("momentum", 4),
        ("whitening", 3),
        ("whitening", 12),
        ("whitening after 5 early refreshes", 4),
    ],
)
def test_each_tile_is_refreshed_at_its_own_step(rule, interval):
    rule = RULES[rule]
    optimizer = jorge(
        0.05, rule=rule, update_interval=interval, stagger=True, **options()
    )
    expected = reference(rule, lambda step: interval, interval, **options())
    assert_trains_as(optimizer, expected)
    # The negative control: all at once.
    plain = jorge(0.05, rule=rule, update_interval=interval, **options())
    assert_differs(assert_trains_as, plain, expected)


@pytest.mark.parametrize("rule", ["series", "whitening after 5 early refreshes"])
def test_schedules_have_ten_slots(rule):
    rule = RULES[rule]
    optimizer = jorge(
        0.05, rule=rule, update_interval=stepwise, stagger=True, **options()
    )
    expected = reference(rule, lambda step: int(stepwise(step)), SLOTS, **options())
    assert_trains_as(optimizer, expected)
    other = reference(rule, lambda step: int(stepwise(step)), 9, **options())
    assert_differs(assert_trains_as, optimizer, other)


@pytest.mark.parametrize("interval", [4, 13, 25])
def test_traced_intervals_have_ten_slots(interval):
    rule = BinomialSeries()
    injected = optax.inject_hyperparams(jorge)
    optimizer = injected(0.05, update_interval=interval, stagger=True, **options())
    expected = reference(rule, lambda step: interval, SLOTS, **options())
    assert_trains_as(optimizer, expected)
    other = reference(rule, lambda step: interval + 1, SLOTS, **options())
    assert_differs(assert_trains_as, optimizer, other)


@pytest.mark.parametrize(
    "changes",
    [
        {"grafting": lengths.Adam(), "damping": 0.1},
        {"grafting": optax.scale_by_adam(), "root_dtype": "bfloat16"},
    ],
)
def test_other_options(changes):
    changes = options(**changes)
    optimizer = jorge(0.05, update_interval=4, stagger=True, **changes)
    expected = reference(BinomialSeries(), lambda step: 4, 4, **changes)
    assert_trains_as(optimizer, expected)
    plain = jorge(0.05, update_interval=4, **changes)
    assert_differs(assert_trains_as, plain, expected)


def test_whitening_against_the_oracle():
    """One stack of six tiles at interval 4: two, two, two, none."""
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(11, 6, 5, 3))
    rule = Whitening(early_refreshes=1)
    optimizer = jorge(1.0, rule=rule, update_interval=4, stagger=True)
    names = [f"w{j}" for j in range(6)]
    state = optimizer.init({name: jnp.zeros((5, 3)) for name in names})
    tiles = [WhiteningTile(5, 3) for _ in names]
    for step, gradient in enumerate(gradients):
        grads = {n: jnp.asarray(g, "f4") for n, g in zip(names, gradient, strict=True)}
        updates, state = step_of(optimizer)(grads, state, grads)[2:0:-1]
        for j, (name, tile) in enumerate(zip(names, tiles, strict=True)):
            due = step == 0 or step % 4 == j // 2
            expected = -tile.step(gradient[j], 0.9, due)
            np.testing.assert_allclose(updates[name], expected, rtol=2e-4, atol=2e-5)
    late = np.abs(updates["w0"] + tiles[0].step(gradient[0], 0.9, True))
    assert np.max(late) > 1e-3


def test_of_interval_one_nothing_changes():
    def text(**changes):
        optimizer = jorge(0.05, **options(**changes))
        state = optimizer.init(PARAMS)
        return jax.jit(optimizer.update).lower(PARAMS, state).as_text()

    for rule in (BinomialSeries(), Whitening()):
        plain = text(rule=rule, update_interval=1)
        assert text(rule=rule, update_interval=1, stagger=True) == plain
        two = text(rule=rule, update_interval=2)
        assert text(rule=rule, update_interval=2, stagger=True) != two


@pytest.mark.parametrize("interval", [4, stepwise])
def test_resumes_exactly_and_is_traced_once(interval):
    rule = Whitening(early_refreshes=3)
    alone = jorge(0.05, rule=rule, update_interval=interval, stagger=True, **options())
    traces = []

    def update(*args):
        traces.append(args)
        return alone.update(*args)

    optimizer = optax.GradientTransformation(alone.init, update)
    whole = train(optimizer, PARAMS, GRADIENTS)
    for at in (2, 6, 17):
        saved = jax.device_get(train(optimizer, PARAMS, GRADIENTS[:at]))
        params, state = jax.tree.map(jnp.asarray, saved)
        assert_same_types(state, optimizer.init(PARAMS))
        for grads in GRADIENTS[at:]:
            params, state, _ = step_of(optimizer)(params, state, grads)
        jax.tree.map(np.testing.assert_array_equal, (params, state), whole)
    # The negative control: the count decides which tiles are due.
    params, state = jax.tree.map(jnp.asarray, saved)
    state = optax.tree.set(state, count=jnp.int32(at + 1))
    for grads in GRADIENTS[at:]:
        params, state, _ = step_of(optimizer)(params, state, grads)
    assert_differs(assert_close, params, whole[0])
    assert len(traces) == 1
    step_of(optimizer)(params, state, random_tree(0, jnp.bfloat16, SHAPES))
    assert len(traces) == 2  # they are counted


@pytest.mark.parametrize("interval", [1, 2, 3, 7, 10, 50])
@pytest.mark.parametrize("tiles", [1, 2, 9, 10, 11, 32, 338])
def test_parts_cover_each_tile_once(interval, tiles):
    stacks = {"a": tiles, "b": 1, "c": 3 * interval}
    parts = cut_into_parts(stacks, interval)
    for key, (size, number, first) in parts.items():
        n = stacks[key]
        assert (number - 1) * size < n <= number * size
        assert 1 <= number <= interval
        assert 0 <= first < interval
        # What is refreshed in vain is less than one part.
        assert number * size - n < size
    assert parts["c"] == (3, interval, 0)


def test_parts_of_small_stacks_are_spread_over_the_slots():
    stacks = {f"stack{i}": 1 + i % 7 for i in range(20)}
    parts = cut_into_parts(stacks, 10)
    load = np.zeros(10, int)
    for own in parts.values():
        for i in range(own.number):
            load[(own.first + i) % 10] += 1
    assert max(load) - min(load) <= 1
    assert load.sum() == sum(stacks.values())


@dataclasses.dataclass(frozen=True)
class RowsAndCalls:
    """Keeps a statistic of each row, and how often it was refreshed."""

    preconditions = "nesterov"

    def init(self, tiles, *, eps, dtype):
        def start():
            return {key: jnp.ones(tile.shape[:2], dtype) for key, tile in tiles.items()}

        roots = {key: Sides(rows, jnp.ones(0, dtype)) for key, rows in start().items()}
        return Preconditioner(roots, {"mean": start(), "calls": jnp.int32(0)})

    def refresh(self, kept, gradients, momenta, *, damping, precision):
        assert kept.roots.keys() == gradients.keys() == kept.statistics["mean"].keys()
        mean = {
            key: 0.5 * old + 0.5 * jnp.mean(gradients[key] ** 2, 2)
            for key, old in kept.statistics["mean"].items()
        }
        roots = {key: Sides(m**-0.5, kept.roots[key].right) for key, m in mean.items()}
        statistics = {"mean": mean, "calls": kept.statistics["calls"] + 1}
        return Preconditioner(roots, statistics)

    def precondition(self, kept, matrices, *, precision):
        return {
            key: kept.roots[key].left[:, :, None] * m for key, m in matrices.items()
        }


@pytest.mark.parametrize("interval", [4, stepwise])
def test_a_rule_of_ones_own_with_statistics(interval):
    optimizer = scale_by_jorge(
        rule=RowsAndCalls(), update_interval=interval, stagger=True, tiling=TILING
    )
    state = optimizer.init(PARAMS)
    known = not callable(interval)
    slots = interval if known else SLOTS
    at = (lambda step: interval) if known else (lambda step: int(stepwise(step)))
    due = due_tiles(order_of_stacks(), STEPS, at, slots)
    update = jax.jit(optimizer.update)
    for step, grads in enumerate(GRADIENTS):
        before = state
        _, state = update(grads, state)
        for key in TILES:
            for old, new in (
                (before.roots[key].left, state.roots[key].left),
                (before.statistics["mean"][key], state.statistics["mean"][key]),
            ):
                changed = np.asarray(old != new).any(1)
                assert changed.tolist() == due[key][step].tolist()
    assert state.statistics["calls"] > 0


def test_under_vmap():
    optimizer = scale_by_jorge(update_interval=4, stagger=True, tiling=TILING)
    two = jax.tree.map(lambda *x: jnp.stack(x), *GRADIENTS[:2])
    state, update = jax.vmap(optimizer.init)(two), jax.jit(optimizer.update)
    updates, both = None, jax.jit(jax.vmap(optimizer.update))
    for _ in range(3):
        updates, state = both(two, state)
    for i, grads in enumerate(GRADIENTS[:2]):
        expected, alone = None, optimizer.init(grads)
        for _ in range(3):
            expected, alone = update(grads, alone)
        assert_close(jax.tree.map(lambda x, i=i: x[i], updates), expected)
        others = jax.tree.map(lambda x, i=i: x[1 - i], updates)
        assert_differs(assert_close, others, expected)


def test_derivatives_pass_through_parts():
    optimizer = jorge(1.0, update_interval=3, stagger=True, tiling=Tiling(3))
    gradient = jax.random.normal(jax.random.key(0), (6, 6))

    def total(gradient):
        state, sum_ = optimizer.init(gradient), 0.0
        for t in range(4):
            update, state = optimizer.update((1 + t) * gradient, state)
            sum_ += jnp.sum(update * jnp.cos(jnp.arange(36.0).reshape(6, 6)))
        return sum_

    slope = jax.jit(jax.grad(total))(gradient)
    assert np.isfinite(slope).all()
    direction = jax.random.normal(jax.random.key(1), (6, 6))
    run, by = jax.jit(total), 1e-2
    numeric = (run(gradient + by * direction) - run(gradient - by * direction)) / by / 2
    assert numeric == pytest.approx(float(jnp.sum(slope * direction)), rel=0.02)


def test_configurations_take_it_as_any_other_option():
    make = functools.partial(from_sgd, optax.constant_schedule(0.1), 0.9, 1e-4)
    for config in (make(), from_adamw(1e-3)):
        state = config.optimizer(stagger=True).init(PARAMS)
        assert_same_types(state, config.optimizer().init(PARAMS))


@pytest.mark.parametrize("wrong", [1, 0.5, "yes", None])
def test_anything_but_a_flag_is_refused(wrong):
    for make in (functools.partial(jorge, 0.1), scale_by_jorge):
        with pytest.raises(TypeError, match="stagger must be True or False"):
            make(stagger=wrong)
