"""The plan of an exchange, carried out in NumPy for all devices at once."""

import itertools
import math

import jax
import numpy as np
import pytest

from jorge_optax import MatrixView, Tiling, default_view
from jorge_optax._routes import plan_route
from jorge_optax._stacks import plan_tree, to_stacks

AXES = {"x": 4, "y": 2}
DEVICES = 8


def slab_of(array, layout, device):
    """A device's part of an array, by the meaning of a partition."""
    place = dict(zip(AXES, np.unravel_index(device, tuple(AXES.values())), strict=True))
    for axis, names in enumerate(layout):
        for name in names:
            parts = np.split(array, AXES[name], axis)
            array = parts[place[name]]
    return array


def fragments_of(route, slabs):
    stacks = to_stacks(route.slabs, slabs)
    return {key: np.asarray(own).reshape(len(own), -1) for key, own in stacks.items()}


def carry_out(ways, had):
    """What each device has after the exchange of `had`, fragments by device and key."""
    result = []
    for device in range(DEVICES):
        own = {}
        for key, way in ways.items():
            received = [
                had[sender][key][index]
                for sender in range(DEVICES)
                for index in way.sent[sender, device]
            ]
            kept = had[device][key]
            received = np.reshape(received, (-1, kept.shape[1]))
            pool = np.concatenate([received, kept, np.zeros_like(kept[:1])])
            own[key] = pool[way.taken[device]]
        result.append(own)
    return result


def view(path, shape):
    return MatrixView((1,), (2,)) if path == "scanned" else default_view(shape)


CASES = {
    "rows": {"a": ((16, 8), (("x", "y"), ())), "b": ((32, 4), (("x", "y"), ()))},
    "columns": {"a": ((5, 16), ((), ("y", "x"))), "b": ((8, 24), ((), ("x",)))},
    "both": {"a": ((16, 8), (("x",), ("y",))), "b": ((8, 8), (("y",), ("x",)))},
    "copies": {"a": ((16, 8), (("y",), ())), "b": ((8, 8), ((), ()))},
    "merged": {"a": ((3, 3, 8, 4), ((), (), ("x", "y"), ()))},
    "first of merged": {"a": ((8, 3, 5), (("x",), (), ()))},
    "batch": {"scanned": ((8, 6, 4), (("x", "y"), (), ()))},
    "two lengths": {"a": ((22, 13), ((), ())), "b": ((16, 13), (("x", "y"), ()))},
    "uneven side": {"a": ((8 * 13, 4), (("x",), ())), "b": ((8, 4), (("x",), ()))},
    "without roots": {"a": ((16, 8), (("x",), ())), "bias": ((8,), (("x",),))},
}


@pytest.mark.parametrize("case", CASES)
def test_tiles_arrive_and_return(case):
    shapes = {name: shape for name, (shape, _) in CASES[case].items()}
    start = itertools.accumulate(map(math.prod, shapes.values()), initial=1)
    params = {  # each entry another number, none of them 0
        name: np.arange(first, first + math.prod(shape), dtype="f4").reshape(shape)
        for (name, shape), first in zip(shapes.items(), start, strict=False)
    }
    plan = plan_tree(params, Tiling(max_dim=8, view=view))
    layouts = tuple(CASES[case][leaf.path][1] for leaf in plan.leaves)
    share = {key: (-(-n // DEVICES), *tile) for key, (n, *tile) in plan.stacks.items()}
    route = plan_route(plan.leaves, tuple(share.items()), layouts, tuple(AXES.items()))
    slabs = [
        [
            leaf if layout is None else slab_of(leaf, layout, device)
            for leaf, layout in zip(jax.tree.leaves(params), route.layouts, strict=True)
        ]
        for device in range(DEVICES)
    ]
    had = [fragments_of(route, own) for own in slabs]
    arrived = carry_out(route.there, had)
    expected = to_stacks(plan, jax.tree.leaves(params))
    for key, (n, rows, columns) in share.items():
        height, width = route.slabs.stacks[key][1:]
        whole = np.concatenate([own[key] for own in arrived])
        grid = whole.reshape(n * DEVICES, rows // height, -1, height, width)
        tiles = grid.transpose(0, 1, 3, 2, 4).reshape(-1, rows, columns)
        tiles, idle = np.split(tiles, [len(expected[key])])
        np.testing.assert_array_equal(tiles, expected[key])
        assert not idle.any()
    returned = carry_out(route.back, arrived)
    for own, before in zip(returned, had, strict=True):
        jax.tree.map(np.testing.assert_array_equal, own, before)


def test_a_wrong_table_is_noticed():
    plan = plan_tree({"a": np.zeros((16, 8), "f4")}, Tiling(max_dim=8))
    layouts = ((("x", "y"), ()),)
    share = {key: (1, 8, 8) for key in plan.stacks}
    route = plan_route(plan.leaves, tuple(share.items()), layouts, tuple(AXES.items()))
    had = [{"8x8": np.full((1, 16), device)} for device in range(DEVICES)]
    first = carry_out(route.there, had)[0]["8x8"]
    assert first[:, 0].tolist() == [0, 1, 2, 3]
    way = route.there["8x8"]
    wrong = {"8x8": way._replace(taken=np.roll(way.taken, 1, axis=1))}
    assert carry_out(wrong, had)[0]["8x8"][:, 0].tolist() == [3, 0, 1, 2]


def test_messages_are_no_longer_than_needed():
    plan = plan_tree({"a": np.zeros((64, 64), "f4")}, Tiling(max_dim=8))
    share = (("8x8", (8, 8, 8)),)
    for layout, volume in (
        ((("x", "y"), ()), 0),  # every device has the tiles that it keeps
        (((), ("x", "y")), 1),  # each sends one tile to each
    ):
        route = plan_route(plan.leaves, share, (layout,), tuple(AXES.items()))
        assert route.there["8x8"].volume == volume
        assert route.back["8x8"].volume == volume
        assert route.slabs.stacks["8x8"] == (8, 8, 8)
