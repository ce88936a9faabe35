"""Tiles spread over eight devices: the same training as on one."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jorge_optax import (
    BinomialSeries,
    Spread,
    Whitening,
    diagnostics,
    graft,
    jorge,
    lengths,
    reshard_state,
    scale_by_jorge,
)
from tests.helpers.contract import (
    assert_close,
    assert_differs,
    assert_same_types,
    nudged,
    step_of,
    train,
)
from tests.helpers.devices import run_on_eight_devices
from tests.helpers.spread import (
    KINDS,
    SHAPES,
    SHARDED,
    TILING,
    Compilations,
    assert_same_placement,
    check_spread,
    make_mesh,
    options,
    trees_of,
)


def share_of(state):
    """The first device's share of each array, by path."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {
        jax.tree_util.keystr(path): leaf.addressable_shards[0].data.shape
        for path, leaf in leaves
    }


def test_four_steps_compile_once():
    run_on_eight_devices(check_four_steps_compile_once)


def check_four_steps_compile_once():
    mesh = make_mesh()
    params, *gradients = jax.device_put(trees_of(), NamedSharding(mesh, P()))
    rate = optax.constant_schedule(0.05)
    optimizer = jorge(rate, **options(sharding=NamedSharding(mesh, P("x"))))
    state = optimizer.init(params)
    step = step_of(optimizer)
    compilations = Compilations()
    for grads in gradients:
        params, state, _ = step(params, state, grads)
    assert compilations.count == 1
    divided = {name: NamedSharding(mesh, SHARDED[name]) for name in params}
    step(jax.device_put(params, divided), state, grads)
    assert compilations.count == 2


def test_every_rule_and_length_on_eight_devices():
    run_on_eight_devices(check_every_rule_and_length)


def check_every_rule_and_length():
    mesh = make_mesh()
    sharding = NamedSharding(mesh, P("x"))
    rate = optax.constant_schedule(0.05)
    cases: list[dict[str, Any]] = [
        {},
        {"rule": BinomialSeries(preconditions="momentum"), "grafting": lengths.Adam()},
        {"rule": Whitening(early_refreshes=1)},
        {"rule": Whitening(early_refreshes=1), "grafting": lengths.Adam()},
        {"rule": Whitening(early_refreshes=1), "grafting": lengths.Shape()},
        {"grafting": optax.scale_by_adam()},
        {"grafting": None},
    ]
    for case in cases:

        def make(case=case, **sharding):
            return jorge(rate, 0.9, 0.01, **options(**case, **sharding))

        assert check_spread(make, mesh, sharding) == {"all-gather": 1}, case

    def direction(**sharding):
        return scale_by_jorge(momentum=0.9, **options(**sharding))

    assert check_spread(direction, mesh, sharding) == {"all-gather": 1}
    mesh = make_mesh(kind=KINDS[-1])
    sharding = NamedSharding(mesh, P("x"))
    assert check_spread(direction, mesh, sharding) == {"all-gather": 1}


def test_sharded_parameters_and_two_axes():
    run_on_eight_devices(check_sharded_parameters_and_two_axes)


def check_sharded_parameters_and_two_axes():
    def make(**sharding):
        return jorge(0.05, 0.9, 0.01, **options(**sharding))

    # The two divided leaves with roots are gathered, then the result.
    for kind in KINDS:
        mesh = make_mesh(kind=kind)
        found = check_spread(make, mesh, NamedSharding(mesh, P("x")), SHARDED)
        assert found == {"all-gather": 3}
    # Data parallel over one axis, tensor parallel over the other; tiles over both, or
    # over one.
    for kind in KINDS:
        mesh = make_mesh((4, 2), ("x", "y"), kind)
        specs = {"kernel": P(None, "y"), "heads": P("x", "y"), "bias": P("y")}
        for axes in (("x", "y"), "y"):
            found = check_spread(make, mesh, NamedSharding(mesh, P(axes)), specs)
            assert set(found) == {"all-gather"}


@pytest.mark.slow
def test_rules_and_lengths_in_every_layout():
    run_on_eight_devices(check_rules_and_lengths_in_every_layout)


def check_rules_and_lengths_in_every_layout():
    """Divided parameters with every rule and length, on meshes of both kinds."""
    cases: list[dict[str, Any]] = [
        {},
        {"grafting": lengths.Adam()},
        {"rule": Whitening(early_refreshes=1)},
        {"rule": Whitening(early_refreshes=1), "grafting": lengths.Adam()},
    ]
    tensor = {"kernel": P(None, "y"), "heads": P("x", "y"), "bias": P("y")}
    layouts = [
        ((8,), ("x",), SHARDED, "all-gather"),
        ((8,), ("x",), SHARDED, "all-to-all"),
        ((4, 2), ("x", "y"), tensor, "all-gather"),
    ]
    # Kinds alternate, and the other one begins in the next layout.
    work = [(layout, case) for layout in layouts for case in (*cases, cases[0])]
    for ((sizes, axes, specs, way), case), kind in zip(
        work, itertools.cycle(KINDS), strict=False
    ):
        mesh = make_mesh(sizes, axes, kind)
        spread = Spread(NamedSharding(mesh, P(axes)))
        if way == "all-to-all":
            by_path = functools.partial(spec_of, specs)
            spread = dataclasses.replace(spread, param_specs=by_path)

        def make(case=case, **sharding):
            return jorge(0.05, 0.9, 0.01, **options(**case, **sharding))

        assert set(check_spread(make, mesh, spread, specs)) == {way}, (case, kind)


def spec_of(specs, path, shape):
    del shape
    return specs[path]


def test_narrow_dtypes():
    run_on_eight_devices(check_narrow_dtypes)


def check_narrow_dtypes():
    mesh = make_mesh()
    sharding = NamedSharding(mesh, P("x"))

    def narrow_roots(**sharding):
        return jorge(0.05, **options(root_dtype="bfloat16", **sharding))

    check_spread(narrow_roots, mesh, sharding, tolerance=1e-2)

    def make(**sharding):
        return jorge(0.05, **options(**sharding))

    narrow = Spread(sharding, gather_dtype="bfloat16")
    check_spread(make, mesh, narrow, tolerance=2**-8)
    with pytest.raises(AssertionError, match="Values not"):
        check_spread(make, mesh, narrow, tolerance=1e-6)


def test_shares_and_idle_tiles():
    run_on_eight_devices(check_shares_and_idle_tiles)


def check_shares_and_idle_tiles():
    mesh = make_mesh()
    sharding = NamedSharding(mesh, P("x"))
    params, grads, *_ = trees_of()
    optimizer = jorge(0.05, **options(sharding=sharding))
    start = jax.jit(optimizer.init)(params)
    _, state, _ = step_of(optimizer)(params, start, grads)
    shapes = share_of(state)
    roots = [shape for path, shape in shapes.items() if ".roots['8x8']" in path]
    assert roots == [(2, 8, 8), (2, 8, 8)]
    momenta = [shape for path, shape in shapes.items() if "['8x6']" in path]
    assert {shape[0] for shape in momenta} == {1}
    # Idle tiles stay as they were, others do not.
    found, first = (
        jax.device_get(optax.tree.get(tree, "roots")) for tree in (state, start)
    )
    for key, tiles in {"8x8": 9, "8x6": 2}.items():
        for new, old in zip(found[key], first[key], strict=True):
            same = (new == old).all((1, 2))
            assert same.tolist() == [False] * tiles + [True] * (len(same) - tiles)
    # The same report as on one device, but for the idle tiles.
    alone = jorge(0.05, **options())
    _, whole, _ = step_of(alone)(params, jax.jit(alone.init)(params), grads)
    report = jax.jit(
        functools.partial(diagnostics, tiling=TILING), static_argnames="sharding"
    )
    ours = report(state, params, grads, sharding=sharding)

    def without_noise(found):  # asymmetry is rounding errors alone
        return {k: v for k, v in found.items() if not k.endswith("asymmetry")}

    theirs = report(whole, params, grads)
    assert_close(without_noise(ours), without_noise(theirs), 1e-3)
    with pytest.raises(ValueError, match="sharding"):
        report(state, params)


def test_a_state_moves_between_numbers_of_devices():
    run_on_eight_devices(check_moves)


def check_moves():
    params, *gradients = trees_of()

    def on(count):
        if count == 1:
            return jorge(0.05, **options())
        mesh = jax.make_mesh(
            (count,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count]
        )
        return jorge(0.05, **options(sharding=NamedSharding(mesh, P("x"))))

    expected = train(on(1), params, gradients)
    result, state, before = params, jax.jit(on(8).init)(params), 8
    # Saved on 8, restored on 1, back on 8, on 4: always the same training.
    for count, grads in zip((8, 1, 8, 4), gradients, strict=True):
        optimizer = on(count)
        if count != before:
            with pytest.raises(ValueError, match="reshard_state"):
                optimizer.update(jax.device_get(grads), jax.device_get(state))
        fresh = jax.jit(optimizer.init)(params)
        state = reshard_state(jax.device_get(state), fresh, params, tiling=TILING)
        assert_same_types(state, fresh)
        assert_same_placement(state, fresh)
        result, state, _ = step_of(optimizer)(jax.device_get(result), state, grads)
        before = count
    state = reshard_state(state, jax.jit(on(1).init)(params), params, tiling=TILING)
    assert_close((result, state), expected, 1e-6)
    assert_differs(assert_close, (result, nudged(state)), expected, 1e-6)


def test_of_one_device_nothing_changes():
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))
    params, grads, *_ = trees_of()
    texts = [
        jax.jit(optimizer.update).lower(grads, optimizer.init(params), params).as_text()
        for optimizer in (
            jorge(0.05, **options()),
            jorge(0.05, **options(sharding=NamedSharding(mesh, P("x")))),
            jorge(0.06, **options()),
        )
    ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def other_state(**changes):
    """A state like that of `jorge(0.05)`, but for the changes."""
    shapes = {**SHAPES, **changes.pop("shapes", {})}
    params, grads, *_ = trees_of(shapes)
    optimizer = jorge(0.05, **options(**changes))
    return optimizer.update(grads, optimizer.init(params), params)[1]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: other_state(rule=Whitening()), "another structure"),
        (lambda: other_state(root_dtype="bfloat16"), "bfloat16 against float32"),
        (lambda: other_state(shapes={"kernel": (24, 16)}), "for 9 tiles"),
        (lambda: other_state(shapes={"kernel": (32, 24)}), "beyond the 9 tiles"),
        (lambda: other_state(shapes={"bias": (25,)}), "'bias'"),
    ],
)
def test_resharding_refuses_other_states(state, message):
    params = trees_of()[0]
    like = jorge(0.05, **options()).init(params)
    reshard_state(other_state(), like, params, tiling=TILING)
    with pytest.raises(ValueError, match=message):
        reshard_state(state(), like, params, tiling=TILING)
    structs = jax.eval_shape(jorge(0.05, **options()).init, params)
    with pytest.raises(TypeError, match="optimizer.init"):
        reshard_state(other_state(), structs, params, tiling=TILING)


def test_bad_shardings_are_refused():
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))
    for spec in (P(), P(None), P(None, "x")):
        with pytest.raises(ValueError, match="divide the first axis"):
            jorge(0.1, sharding=NamedSharding(mesh, spec))
    for wrong in (mesh, "x", P("x")):
        with pytest.raises(TypeError, match="NamedSharding"):
            jorge(0.1, sharding=wrong)
    with pytest.raises(ValueError, match="gather_dtype"):
        Spread(NamedSharding(mesh, P("x")), gather_dtype="float16")
    with pytest.raises(ValueError, match="y"):  # by jax itself
        NamedSharding(mesh, P("y"))


def test_composes_with_grafting_and_injection():
    run_on_eight_devices(check_composes)


def check_composes():
    mesh = make_mesh()
    sharding = NamedSharding(mesh, P("x"))

    def grafted(**sharding):
        direction = scale_by_jorge(**options(**sharding))
        return graft(optax.trace(0.9), direction, tiling=TILING)

    params, *gradients = trees_of()
    expected = train(grafted(), params, gradients)[0]
    params, *gradients = jax.device_put(trees_of(), NamedSharding(mesh, P()))
    result, _ = train(grafted(sharding=sharding), params, gradients)
    assert_close(result, expected, 1e-6)
    assert_differs(assert_close, nudged(result), expected, 1e-6)
    injected = optax.inject_hyperparams(jorge)(0.05, sharding=sharding, **options())
    expected = train(jorge(0.05, **options()), params, gradients)[0]
    result, state = train(injected, params, gradients)
    assert_close(result, expected)
    assert float(state.hyperparams["learning_rate"]) == pytest.approx(0.05)
