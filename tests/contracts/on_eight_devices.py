"""Eight devices in one process, which test_devices.py starts."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.problems import shapes
from jorge_optax import (
    Numerics,
    Sharded,
    Spread,
    describe,
    diagnostics,
    from_adamw,
    from_sgd,
    graft,
    jorge,
    reshard_state,
)
from tests.contracts.spread import (
    LAYOUTS,
    OPTIMIZERS,
    SHAPES,
    TILING,
    assert_equals_one_device,
    assert_same_places,
    collectives,
    make,
    make_mesh,
    train_on,
    trained_alone,
    trees,
)
from tests.helpers import optax_suites
from tests.helpers.contract import (
    assert_agrees,
    assert_close,
    assert_differs,
    assert_same_types,
    random_tree,
    step_of,
    train,
)

# The same training as on one device.

CASES = [
    *((layout, "series") for layout in LAYOUTS),
    *((layout, "from_adamw") for layout in ("replicated", "fsdp")),
    *(("replicated", name) for name in OPTIMIZERS if name not in "series, from_adamw"),
    *(("both", name) for name in ("whitening", "by shape", "others")),
]


@pytest.mark.parametrize(("layout", "name"), CASES)
def test_training_equals_that_on_one_device(layout, name):
    trained = train_on(LAYOUTS[layout], name)
    assert_equals_one_device(trained, name)
    expected = {"all-gather": 1} if "replicated" in layout else {}
    assert trained.collectives == expected


def test_the_count_of_collectives_finds_them():
    mesh = make_mesh()
    rows = jax.ShapeDtypeStruct((8, 8), "f4", sharding=NamedSharding(mesh, P("x")))
    assert collectives(jax.jit(jnp.sum).lower(rows).compile().as_text())


WHOLE = LAYOUTS["replicated"].sharding
NARROW = {
    "roots": {"sharding": WHOLE, "numerics": Numerics(roots="bfloat16")},
    "gather": {"sharding": Spread(WHOLE, gather_dtype="bfloat16")},
}


@pytest.mark.parametrize("options", NARROW.values(), ids=NARROW)
def test_narrow_dtypes(options):
    params, grads, *_ = trees()
    alone, _ = train(make("series"), params, [grads])
    placed = jax.device_put((params, grads), NamedSharding(WHOLE.mesh, P()))
    result, _ = train(make("series", **options), placed[0], [placed[1]])
    assert_close(result, alone, tolerance=2**-7)
    assert_differs(assert_close, result, alone, tolerance=1e-5)


# What each device keeps.


def test_shares_and_idle_tiles():
    trained = train_on(LAYOUTS["replicated"], "series")
    roots = optax.tree.get(trained.state, "roots")
    # 51 tiles of 8x8 are 7 on each device, and 24 of 8x6 are 3.
    shares = {
        key: root.unit.addressable_shards[0].data.shape
        for key, root in roots.left.items()
    }
    assert shares == {"8x8": (7, 8, 8), "8x6": (3, 8, 8)}
    # Idle tiles stay as they were, others do not.
    first = optax.tree.get(trained.tx.init(trees()[0]), "roots")
    for new, old in zip(roots, first, strict=True):
        same = np.all(jax.device_get(new["8x8"].unit == old["8x8"].unit), (1, 2))
        assert same.tolist() == [False] * 51 + [True] * 5


WIDTH = 128
BLOCK = {
    "qkv": (WIDTH, 3 * WIDTH),
    "out": (WIDTH, WIDTH),
    "up": (WIDTH, 4 * WIDTH),
    "down": (4 * WIDTH, WIDTH),
    "norm": (WIDTH,),
}
# 6 MB in float32.
TRANSFORMER = {f"block{i}": BLOCK for i in range(7)} | {"last": (WIDTH, 1024)}
RESNET50 = jax.tree.map(lambda leaf: leaf.shape, shapes.resnet(50))
# Momenta of parameters without roots are on every device: of Adam there are two.
EIGHTHS = [
    *((recipe, TRANSFORMER, 6.0) for recipe in (jorge, from_sgd, from_adamw)),
    (jorge, RESNET50, 8 / 1.02),
    (from_sgd, RESNET50, 8 / 1.02),
    (from_adamw, RESNET50, 8 / 1.025),
]


@pytest.mark.parametrize(("recipe", "model", "least"), EIGHTHS)
def test_a_device_keeps_an_eighth_of_the_state(recipe, model, least):
    params = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, "float32"),
        model,
        is_leaf=lambda node: isinstance(node, tuple),
    )
    tx = recipe(0.1, sharding=NamedSharding(make_mesh(), P("x")))
    state = jax.eval_shape(tx.init, params)
    placed = jax.jit(tx.init).lower(params).compile().output_shardings
    whole = jax.eval_shape(recipe(0.1).init, params)
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(placed), strict=True)
    kept = sum(math.prod(own.shard_shape(x.shape)) for x, own in pairs)
    ratio = sum(math.prod(x.shape) for x in jax.tree.leaves(whole)) / kept
    assert least <= ratio <= 8


# States move between numbers of devices.


def on_devices(name, layout, count):
    if count == 1:
        return make(name)
    return make(name, sharding=LAYOUTS[layout]._replace(sizes=(count,)).sharding)


@pytest.mark.parametrize(
    ("name", "layout"), [("from_adamw", "replicated"), ("series", "fsdp")]
)
def test_a_state_moves_between_numbers_of_devices(name, layout):
    params, *gradients = trees()
    tx = on_devices(name, layout, 8)
    result, state = params, jax.jit(tx.init)(params)
    # Saved on 8, restored on 3, and so on: always the same training.
    for count, grads in zip((8, 3, 2, 1), gradients, strict=True):
        before, tx = tx, on_devices(name, layout, count)
        state = reshard_state(jax.device_get(state), tx, params, saved_by=before)
        fresh = tx.init(params)
        assert_same_types(state, fresh)
        assert_same_places(state, fresh)
        result, state, _ = step_of(tx)(jax.device_get(result), state, grads)
    _, expected, expected_state = trained_alone(name)
    ours = result, state
    assert_agrees(ours, (expected, expected_state), 1e-6)
    # And back: what was saved on one device is the same on eight.
    eight = on_devices(name, layout, 8)
    there = reshard_state(jax.device_get(state), eight, params, saved_by=tx)
    back = reshard_state(jax.device_get(there), tx, params, saved_by=eight)
    assert_agrees(back, state, 1e-7)


def test_a_state_tells_which_tiles_fill_idle_ones():
    """How many devices it is from need not be said."""
    shapes = {"large": (120, 8), "small": (5, 3)}
    params, *gradients = (random_tree(i, shapes=shapes) for i in range(4))
    kept = {count: on_devices("series", "replicated", count) for count in (8, 3, 1)}
    _, expected = train(kept[1], params, gradients)
    result, state = params, kept[8].init(params)
    for (count, tx), grads in zip(kept.items(), gradients, strict=True):
        state = reshard_state(jax.device_get(state), tx, params)
        names = set(optax.tree.get(state, "roots").left)
        assert names == ({"8x8~8"} if count == 8 else {"8x8", "5x3"})
        result, state, _ = step_of(tx)(jax.device_get(result), state, grads)
    assert_agrees(state, expected, 1e-6)


def test_a_state_of_other_devices_is_refused():
    params, grads, *_ = trees()
    state = jax.device_get(on_devices("from_adamw", "replicated", 8).init(params))
    tx = on_devices("from_adamw", "replicated", 3)
    with pytest.raises(ValueError, match="reshard_state"):
        tx.update(grads, state, params)


def test_shards_that_are_no_multiples_of_tiles_are_refused_by_name():
    params = {"good": jnp.ones((64, 16)), "bad": jnp.ones((96, 16))}
    saved_by = jorge(0.1, tiling=TILING, sharding=Sharded(make_mesh(), rows))
    state = jax.device_get(saved_by.init(params))
    with pytest.raises(ValueError, match="(?s)'bad'.*multiples.*8x8"):
        reshard_state(state, jorge(0.1, tiling=TILING), params, saved_by=saved_by)


def rows(path, shape):
    return P("x") if len(shape) > 1 else P()


OTHERS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "rule": ("shampoo", {}, SHAPES),
    "another structure": ("from_adamw", {}, SHAPES),
    "bfloat16.*float32": ("series", {"numerics": Numerics(roots="bfloat16")}, SHAPES),
    "'8x8': 51.*momenta": ("series", {}, SHAPES | {"kernel": (208, 16)}),
    r"\[25\] at .*bias": ("series", {}, SHAPES | {"bias": (25,)}),
}


@pytest.mark.parametrize("message", OTHERS)
def test_resharding_refuses_states_of_others(message):
    name, options, own = OTHERS[message]
    other = make(name, **options)
    grads = random_tree(0, shapes=own)
    _, state = train(other, grads, [grads])
    with pytest.raises(ValueError, match=message):
        reshard_state(state, make("series"), trees()[0])


# Reports.


@pytest.mark.parametrize("layout", ["replicated", "fsdp"])
def test_diagnostics_and_describe_say_what_they_say_on_one_device(layout):
    trained = train_on(LAYOUTS[layout], "from_adamw")
    alone, params, state = trained_alone("from_adamw")
    grads = trees()[1]
    found = jax.jit(functools.partial(diagnostics, tx=trained.tx))(
        trained.state, trained.params, grads
    )
    expected = diagnostics(state, params, grads, alone)
    assert set(found) == set(expected)

    def numbers(report):
        # Tiles are in the order of shards, and asymmetry is rounding alone.
        return {
            key: np.sort(value)
            for key, value in jax.device_get(dict(report)).items()
            if not key.endswith("asymmetry")
        }

    assert_agrees(numbers(found), numbers(expected), 1e-3)
    rows, others = (
        {
            leaf.path: (leaf.state_bytes, leaf.marked)
            for leaf in describe(params, tx).leaves
        }
        for tx in (trained.tx, alone)
    )
    assert rows == others


def test_describe_marks_thin_shards():
    tx = jorge(0.1, sharding=Sharded(make_mesh(), rows))
    params = {"a": jnp.ones((16, 128)), "b": jnp.ones((512, 64))}
    thin, square = describe(params, tx).leaves
    assert thin.marked
    assert "thin shards" in thin.preconditioned
    assert not square.marked


# With other transformations, and optax's own tests.


def test_composes_with_grafting_and_injection():
    placed = jax.device_put(trees(), NamedSharding(WHOLE.mesh, P()))
    injected = optax.inject_hyperparams(jorge)
    for make_tx in (
        lambda **options: graft(optax.trace(0.9), make("direction", **options)),
        lambda **options: injected(0.05, tiling=TILING, **options),
    ):
        expected, _ = train(make_tx(), trees()[0], trees()[1:])
        result, _ = train(make_tx(sharding=WHOLE), placed[0], placed[1:])
        assert_agrees(jax.device_get(result), expected, 1e-6)


@pytest.mark.parametrize("name", [row.__name__ for row, _ in optax_suites.ALIASES])
def test_optaxs_own_tests_of_shardings(name):
    case = optax_suites.sharding_suite(optax_suites.ALIASES)
    names, failed = optax_suites.run(case, f"_{name}")
    assert len(names) == 3
    assert not failed


def test_optaxs_own_tests_of_shardings_can_fail():
    def drifts():
        def init_fn(params):
            return jnp.zeros([], jnp.float16)

        def update_fn(updates, state, params=None):
            return updates, state + jnp.float32(1)

        return optax.GradientTransformation(init_fn, update_fn)

    case = optax_suites.sharding_suite([(drifts, {})])
    assert optax_suites.run(case, "init_match_update_drifts")[1]
