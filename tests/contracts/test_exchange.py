"""Divided parameters on eight devices: the same training as on one."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.cost import partition
from jorge_optax import Spread, Whitening, jorge, lengths
from tests.helpers.contract import assert_close, assert_differs, nudged, train
from tests.helpers.devices import run_on_eight_devices
from tests.helpers.spread import (
    KINDS,
    SHARDED,
    TILING,
    check_spread,
    make_mesh,
    options,
    trees_of,
)

WHITENING = {"rule": Whitening(early_refreshes=1)}


def optimizer_of(case, **sharding):
    return jorge(0.05, 0.9, 0.01, **options(**case, **sharding))


def spread_over(mesh, axes, specs, **more):
    sharding = NamedSharding(mesh, P(axes))
    return Spread(sharding, param_specs=lambda path, _: specs[path], **more)


def test_fsdp_takes_two_all_to_alls():
    run_on_eight_devices(check_fsdp)


def check_fsdp():
    for kind, case in zip(
        (*KINDS, *KINDS)[:3],
        ({}, {**WHITENING, "grafting": lengths.Adam()}, WHITENING),
        strict=False,
    ):
        mesh = make_mesh(kind=kind)
        make = functools.partial(optimizer_of, case)
        sharding = spread_over(mesh, "x", SHARDED)
        assert check_spread(make, mesh, sharding, SHARDED) == {"all-to-all": 2}
    # Without the specs, gradients and steps are gathered.
    found = check_spread(make, mesh, NamedSharding(mesh, P("x")), SHARDED)
    assert found == {"all-gather": 3}


def test_fsdp_and_tensor_parallelism_on_two_axes():
    run_on_eight_devices(check_two_axes)


def check_two_axes():
    specs = {"kernel": P("x", "y"), "heads": P("y"), "bias": P("y")}
    for kind, axes, case, expected in (
        (KINDS[0], ("x", "y"), {"grafting": lengths.Shape()}, {"all-to-all": 2}),
        (KINDS[-1], ("y", "x"), WHITENING, {"all-to-all": 2}),
        # Parts over the other axis are gathered.
        (KINDS[0], "y", WHITENING, {"all-to-all": 2, "all-gather": 1}),
    ):
        mesh = make_mesh((4, 2), ("x", "y"), kind)
        make = functools.partial(optimizer_of, case)
        sharding = spread_over(mesh, axes, specs)
        assert check_spread(make, mesh, sharding, specs) == expected, (kind, axes)


def test_narrow_dtypes_and_specs_that_are_not_true():
    run_on_eight_devices(check_narrow)


def check_narrow():
    mesh = make_mesh()
    make = functools.partial(optimizer_of, {"root_dtype": "bfloat16", **WHITENING})
    sharding = spread_over(mesh, "x", SHARDED)
    check_spread(make, mesh, sharding, SHARDED, tolerance=1e-2)
    make = functools.partial(optimizer_of, {})
    narrow = spread_over(mesh, "x", SHARDED, gather_dtype="bfloat16")
    check_spread(make, mesh, narrow, SHARDED, tolerance=2**-8)
    with pytest.raises(AssertionError, match="Values not"):
        check_spread(make, mesh, narrow, SHARDED, tolerance=1e-6)
    # Parameters are placed otherwise than the specs say: more traffic, same result.
    params, *gradients = trees_of()
    expected = train(make(), params, gradients)[0]
    params, *gradients = jax.device_put(trees_of(), NamedSharding(mesh, P(None)))
    result = train(make(sharding=sharding), params, gradients)[0]
    assert_close(result, expected, 1e-6)
    assert_differs(assert_close, nudged(result), expected, 1e-6)


def test_bad_specs_are_refused():
    mesh = jax.make_mesh((1,), ("x",))
    with pytest.raises(TypeError, match="function of a path and a shape"):
        Spread(NamedSharding(mesh, P("x")), param_specs=P("x"))
    run_on_eight_devices(check_bad_specs)


def check_bad_specs():
    mesh = make_mesh()
    params = trees_of()[0]
    for spec, message in (
        (P("x", None, None), "3 entries for 2 axes"),
        (P("z"), "z"),
        (P("x", "x"), "x"),
        ("x", "not a PartitionSpec"),
    ):
        specs = {"kernel": spec, "heads": P()}
        optimizer = optimizer_of({}, sharding=spread_over(mesh, "x", specs))
        with pytest.raises(ValueError, match=f"kernel.*{message}"):
            optimizer.update(params, optimizer.init(params), params)


def test_nothing_is_as_large_as_the_parameters():
    run_on_eight_devices(check_temporaries)


def check_temporaries():
    mesh = make_mesh()
    place = NamedSharding(mesh, P("x"))
    params = {f"layer{i}": jnp.zeros((64, 64), device=place) for i in range(16)}
    specs = dict.fromkeys(params, P("x"))
    placed = dict.fromkeys(params, place)
    size = 16 * 64 * 64

    def largest_and_exchanged(sharding):
        optimizer = jorge(0.1, tiling=TILING, sharding=sharding)
        step = jax.jit(optimizer.update, out_shardings=(placed, None))
        state = optimizer.init(params)
        text = step.lower(params, state, params).compile().as_text()
        shapes = re.findall(r" f32\[([\d,]+)\]", text)
        largest = max(math.prod(map(int, shape.split(","))) for shape in shapes)
        return largest, sum(one.elements for one in partition.collectives(text))

    largest, exchanged = largest_and_exchanged(spread_over(mesh, "x", specs))
    assert largest <= size // 3
    assert exchanged == size // 4  # an eighth there, an eighth back
    largest, exchanged = largest_and_exchanged(place)
    assert largest >= size
    assert exchanged == 2 * size
