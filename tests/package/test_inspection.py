"""describe, state_size and diagnostics: exact, pure, and at home in any tree."""

import json
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    BinomialSeries,
    Diagnostics,
    MatrixView,
    Tiling,
    Whitening,
    default_view,
    describe,
    diagnostics,
    from_adamw,
    from_sgd,
    jorge,
    lengths,
    scale_by_jorge,
    state_size,
    views,
)


def real_bytes(state):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))


PARAMS = {
    "conv": jnp.zeros((3, 3, 4, 8)),
    "dense": {"kernel": jnp.zeros((70, 33)), "bias": jnp.zeros((33,))},
    "half": jnp.zeros((20, 20), jnp.bfloat16),
    "scan": jnp.zeros((3, 5, 6)),
    "scalar": jnp.zeros(()),
    "column": jnp.zeros((17, 1)),
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"root_dtype": "bfloat16"},
        {"tiling": Tiling(16)},
        {"grafting": None},
        {"grafting": optax.scale_by_adam()},
        {"grafting": lengths.Adam()},
        {"rule": Whitening()},
        {"rule": BinomialSeries(preconditions="momentum"), "grafting": lengths.Adam()},
        {"accumulator_dtype": "bfloat16"},
    ],
)
def test_state_size_is_exact_and_allocates_nothing(options):
    real = real_bytes(jorge(0.1, **options).init(PARAMS))
    assert state_size(PARAMS, **options) == real
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), PARAMS)
    assert state_size(structs, **options) == real
    assert describe(structs, **options).state_bytes == real
    # The rows add up, but for counts and stand-ins.
    rows = sum(leaf.state_bytes for leaf in describe(structs, **options).leaves)
    assert 0 <= real - rows <= 32
    assert state_size({**PARAMS, "more": jnp.zeros((4, 4))}, **options) > real


def test_a_configuration_is_described_as_it_runs():
    config = from_sgd(0.1, 0.9, total_steps=9, rule=Whitening())
    table = describe(PARAMS, config)
    assert table.leaves == describe(PARAMS, rule=Whitening()).leaves
    assert table.state_bytes == real_bytes(config.optimizer().init(PARAMS))
    assert "by Whitening(): " in repr(table)
    assert "by BinomialSeries(): " in repr(describe(PARAMS))
    assert describe(PARAMS).state_bytes != table.state_bytes
    # What the configuration leaves out has no roots, whatever the tiling.
    leaves_out = from_adamw(1e-3, leave_out=("dense",))
    for options in ({}, {"tiling": Tiling(16)}, {"root_dtype": "bfloat16"}):
        table = describe(PARAMS, leaves_out, **options)
        kinds = {leaf.path: leaf.preconditioned for leaf in table.leaves}
        assert kinds["dense/kernel"] == "no: left out by Tiling.view"
        assert kinds["conv"] == "yes"
        made = leaves_out.optimizer(**options)
        assert table.state_bytes == real_bytes(made.init(PARAMS))
    with pytest.raises(TypeError, match=r"config.replace\(rule="):
        describe(PARAMS, leaves_out, rule=Whitening())


def test_describe_tells_what_happens_to_each_parameter():
    def view(path, shape):
        if path == "scan":
            return MatrixView((1,), (2,))
        return None if path == "half" else default_view(shape)

    table = describe(PARAMS, tiling=Tiling(40, view=view))
    rows = {leaf.path: leaf for leaf in table.leaves}
    assert rows["conv"].matrix == "36x8"
    assert rows["conv"].tiles == "1 of 36x8"
    assert rows["dense/kernel"].tiles == "2 of 35x33"
    assert rows["scan"].matrix == "3 of 5x6"
    assert rows["scan"].tiles == "3 of 5x6"
    assert rows["conv"].preconditioned == "yes"
    assert rows["scalar"].preconditioned == "no: not a matrix"
    assert rows["column"].preconditioned == "no: a side shorter than 2"
    assert rows["half"].preconditioned == "no: left out by Tiling.view"
    # two float32 momenta and two roots; one momentum
    assert rows["conv"].state_bytes == 4 * (2 * 36 * 8 + 36**2 + 8**2)
    assert rows["dense/bias"].state_bytes == 4 * 33
    assert rows["half"].state_bytes == 4 * 400
    assert rows["half"].parameter_bytes == 2 * 400
    assert rows["conv"].parameter_bytes == 4 * 36 * 8
    assert table.parameter_bytes == real_bytes(PARAMS)
    text = str(table)
    assert "dense/kernel" in text
    assert "AdamW's" in text
    conv = next(line.split() for line in text.splitlines() if line.startswith("conv"))
    ratio = rows["conv"].state_bytes / rows["conv"].parameter_bytes
    assert conv[-3:] == [f"{ratio:.1f}", "x", "yes"]
    entries = json.loads(json.dumps(table.to_dict()))
    assert [row["path"] for row in entries["leaves"]] == [*rows]


LAYERS = {
    "embed/embedding": ((50257, 768), "views.without('embed')"),
    "decoder/table": ((50257, 768), "views.without('table')"),
    "attention/query/kernel": ((768, 12, 64), "views.transformer"),
    "attention/query/bias": ((12, 64), "views.transformer"),
    "dense/lora_a": ((768, 4), "views.without('lora_a')"),
    "stages/conv/kernel": ((4, 3, 3, 64, 64), "views.scanned('stages')"),
    "layers/mlp/kernel": ((12, 512, 512), "views.scanned('layers')"),
    "layers/attention/query": ((12, 768, 12, 64), "views.scanned('layers')"),
    "experts/up": ((8, 512, 2048), "views.scanned('experts')"),
    "depthwise/kernel": ((3, 3, 1, 256), "views.without('depthwise')"),
    "block/dw_conv/kernel": ((3, 3, 1, 64), "views.without('dw')"),
    # The default fits.
    "attention/out/kernel": ((12, 64, 768), None),
    "dense/kernel": ((2048, 1000), None),
    "conv/kernel": ((3, 3, 64, 128), None),
    "conv3d/kernel": ((3, 3, 3, 32, 64), None),
    "conv1d/kernel": ((3, 64, 128), None),
    "stem/kernel": ((7, 7, 3, 64), None),
    "grey/kernel": ((3, 3, 1, 64), None),
    "head/kernel": ((64, 10), None),
    "norm/scale": ((64,), None),
}


@pytest.mark.parametrize("path", LAYERS)
def test_describe_names_the_remedy_where_the_default_does_not_fit(path):
    shape, remedy = LAYERS[path]
    table = describe({path: jax.ShapeDtypeStruct(shape, "float32")})
    if remedy is None:
        assert table.notes == ()
        assert " !" not in str(table)
        return
    (note,) = table.notes
    assert note.startswith(f"{path} {shape}: ")
    assert remedy in note
    assert f"note: {note}" in str(table)
    # The remedy is one: with it there is nothing to note.
    view = {
        "transformer": lambda: views.transformer,
        "without": lambda: views.without(note.split("'")[1]),
        "scanned": lambda: views.scanned(note.split("'")[1], view=views.transformer),
    }[remedy.removeprefix("views.").split("(")[0]]()
    struct = {path: jax.ShapeDtypeStruct(shape, "float32")}
    assert describe(struct, tiling=Tiling(view=view)).notes == ()


def test_remedies_leave_healthy_parameters_alone():
    # "a" is in the path of nearly every parameter, "kernel" in that of two.
    shapes = {
        "attention/kernel": (768, 768),
        "lora/a": (768, 4),
        "lora/b": (4, 768),
        "thin/kernel": (4, 768),
    }
    structs = {k: jax.ShapeDtypeStruct(s, "float32") for k, s in shapes.items()}
    notes = describe(structs).notes
    lora, thin, together = notes
    assert lora.startswith("lora/a (768, 4) and 1 more: ")
    assert "views.without('lora')" in lora
    assert "views.without('thin')" in thin
    (text,) = re.findall(r"Tiling\(.*\)", together)
    tiling = eval(text, {"Tiling": Tiling, "views": views})
    table = describe(structs, tiling=tiling)
    assert table.notes == ()
    assert [leaf.path for leaf in table.leaves if leaf.matrix != "-"] == [
        "attention/kernel"
    ]
    # One that is not the default view is kept.
    notes = describe(structs, tiling=Tiling(view=views.transformer)).notes
    assert notes[-1].endswith(
        "Tiling(view=views.without('lora', 'thin', view=your_view))."
    )


def test_one_view_follows_all_notes():
    shapes = {path: shape for path, (shape, _) in LAYERS.items()}
    structs = {k: jax.ShapeDtypeStruct(s, "float32") for k, s in shapes.items()}
    notes = describe(structs).notes
    (text,) = re.findall(r"Tiling\(.*\)", notes[-1])
    tiling = eval(text, {"Tiling": Tiling, "views": views})
    table = describe(structs, tiling=tiling)
    assert table.notes == ()
    rows = {leaf.path: leaf for leaf in table.leaves}
    assert rows["attention/query/kernel"].matrix == "768x768"
    assert rows["layers/mlp/kernel"].matrix == "12 of 512x512"
    assert rows["layers/attention/query"].matrix == "12 of 768x768"
    fits = [path for path, (_, remedy) in LAYERS.items() if remedy is None]
    by_default = {leaf.path: leaf for leaf in describe(structs).leaves}
    assert all(rows[path] == by_default[path] for path in fits)


def test_describe_marks_a_state_that_is_out_of_proportion():
    shapes = {"lora": (768, 4), "square": (256, 256)}
    structs = {k: jax.ShapeDtypeStruct(s, "float32") for k, s in shapes.items()}
    lines = {
        line.split()[0]: line for line in str(describe(structs)).splitlines() if line
    }
    assert "66.0 x !" in lines["lora"]
    assert "4.0 x " in lines["square"]
    assert "!" not in lines["square"]


def test_equal_notes_are_one_line():
    structs = {
        f"layers/{i}/query": jax.ShapeDtypeStruct((64, 4, 16), "float32")
        for i in range(3)
    }
    (note,) = describe(structs).notes
    assert note.startswith("layers/0/query (64, 4, 16) and 2 more: attention")


def trained(optimizer, steps=12, dead_row=False):
    rng = np.random.default_rng(0)
    params = {"w": jnp.zeros((8, 5)), "b": jnp.zeros((5,))}
    state = optimizer.init(params)
    grads = params
    for _ in range(steps):
        grads = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape)), params)
        if dead_row:
            grads["w"] = grads["w"].at[2].set(0)
        _, state = optimizer.update(grads, state, params)
    return params, state, grads


def test_diagnostics_agree_with_linear_algebra():
    params, state, grads = trained(jorge(0.1, update_interval=1))
    report = diagnostics(state, params, grads)
    roots = optax.tree.get(state, "roots")["8x5"]
    gradient = np.asarray(grads["w"], np.float64)
    for side, g in (("left", gradient), ("right", gradient.T)):
        root = np.asarray(getattr(roots, side)[0], np.float64)
        values = np.linalg.eigvalsh((root + root.T) / 2)
        found = {
            key.removeprefix(f"w/{side}/"): float(value[0])
            for key, value in report.items()
        }
        assert found["norm"] == pytest.approx(np.linalg.norm(root), rel=1e-5)
        assert values[-1] * 0.9 < found["largest"] <= values[-1] * 1.0001
        assert 0.7 * values[-1] / values[0] < found["condition"]
        assert found["condition"] <= 1.001 * values[-1] / values[0]
        asymmetry = np.linalg.norm(root - root.T) / np.linalg.norm(root)
        assert found["asymmetry"] == pytest.approx(asymmetry, rel=1e-3)
        norm = np.linalg.norm(np.linalg.matrix_power(root, 4) @ g @ g.T)
        assert found["beta2"] == pytest.approx(norm / (norm + 1), rel=1e-3)
        assert found["growth"] == pytest.approx((norm / (norm + 1)) ** -0.25, rel=1e-3)
        assert found["unexcited"] == 0
    direction = np.asarray(roots.left[0]) @ gradient @ np.asarray(roots.right[0])
    cosine = np.sum(direction * gradient)
    cosine /= np.linalg.norm(direction) * np.linalg.norm(gradient)
    assert float(report["w/cosine"][0]) == pytest.approx(cosine, rel=1e-3)


def test_diagnostics_count_rows_that_no_gradient_has_excited():
    params, state, _ = trained(jorge(0.1, update_interval=1), dead_row=True)
    report = diagnostics(state, params)
    assert report["w/left/unexcited"].tolist() == [1]
    assert report["w/right/unexcited"].tolist() == [0]
    assert float(report["w/left/condition"][0]) > 1.5


def test_diagnostics_find_the_state_wherever_it_is():
    params, state, _ = trained(jorge(0.1, update_interval=1))
    plain = diagnostics(state, params)
    wrapped = {
        "chain": optax.chain(optax.clip(1e9), jorge(0.1, update_interval=1)),
        "inject": optax.inject_hyperparams(jorge)(0.1, update_interval=1),
        "direction": optax.chain(scale_by_jorge(update_interval=1), optax.scale(0.1)),
        "finite": optax.apply_if_finite(jorge(0.1, update_interval=1), 3),
    }
    for optimizer in wrapped.values():
        found = diagnostics(trained(optimizer)[1], params)
        chex.assert_trees_all_close(found, plain, rtol=1e-4)
    other = diagnostics(trained(jorge(0.1, update_interval=2))[1], params)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(other, plain, rtol=1e-4)


def test_diagnostics_are_pure_and_jittable():
    params, state, grads = trained(jorge(0.1, update_interval=1))
    before = jax.tree.map(np.array, state)
    eager = diagnostics(state, params, grads)
    jitted = jax.jit(diagnostics)(state, params, grads)
    chex.assert_trees_all_close(jitted, eager, rtol=1e-4)
    chex.assert_trees_all_equal(jax.tree.map(np.asarray, state), before)
    assert json.dumps({key: float(value.max()) for key, value in eager.items()})


def test_diagnostics_have_one_number_for_each_tile_of_a_parameter():
    """Parameters share stacks, and one has tiles in several of them."""
    rng = np.random.default_rng(1)
    shapes = {"a": (9, 4), "b": (4, 4), "c": (7, 6)}
    params = {k: jnp.asarray(rng.normal(size=s)) for k, s in shapes.items()}
    tiling = Tiling(4)
    optimizer = jorge(0.1, update_interval=1, tiling=tiling)
    _, state = optimizer.update(params, optimizer.init(params))
    report = diagnostics(state, params, params, tiling=tiling)
    tiles = {"a": 3, "b": 1, "c": 4}
    assert {key: len(value) for key, value in report.items()} == {
        key: tiles[key.split("/")[0]] for key in report
    }
    # Each parameter's numbers are those that it has alone in a tree.
    for key in params:
        alone = {key: params[key]}
        _, state = optimizer.update(alone, optimizer.init(alone))
        expected = dict(diagnostics(state, alone, alone, tiling=tiling))
        assert expected
        found = {name: report[name] for name in expected}
        chex.assert_trees_all_close(found, expected, rtol=1e-4)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(
            report["b/left/norm"][0], report["a/left/norm"], rtol=1e-4
        )


def test_diagnostics_of_a_state_without_roots_or_without_jorge():
    bias = {"b": jnp.zeros(3)}
    assert diagnostics(jorge(0.1).init(bias), bias) == {}
    with pytest.raises(ValueError, match="found 0"):
        diagnostics(optax.sgd(0.1).init(bias), bias)
    params, other = {"w": jnp.zeros((4, 3))}, {"w": jnp.zeros((5, 3))}
    state = jorge(0.1).init(params)
    for arguments in ((other,), (params, other)):
        with pytest.raises(ValueError, match="the state has"):
            diagnostics(state, *arguments)
    with pytest.raises(ValueError, match="the optimizer's Tiling"):
        diagnostics(state, params, tiling=Tiling(2))


# Verdicts.


def report_of(**changes):
    """A healthy report on one parameter of two tiles, with some numbers changed."""
    healthy = {"norm": 4.0, "condition": 5.0, "asymmetry": 0.1}
    healthy |= {"at_risk": 0, "unexcited": 0}
    numbers = {
        f"layer/w/{side}/{name}": np.array([value, value])
        for side in ("left", "right")
        for name, value in healthy.items()
    }
    numbers["layer/w/cosine"] = np.array([0.5, 0.6])
    for name, value in changes.items():
        key = f"layer/w/{name}" if name == "cosine" else f"layer/w/right/{name}"
        numbers[key] = np.array([value, numbers[key][1]])
    return Diagnostics(numbers)


VERDICTS = {
    "healthy": ({}, "healthy"),
    "dead": ({"unexcited": 3}, "healthy, with rows that no gradient has excited"),
    "at risk": ({"at_risk": 1}, "roots at risk of ascent: keep them in float32"),
    "singular": ({"condition": 1e7}, "roots close to singular: add damping"),
    "orthogonal": ({"cosine": 0.001}, "direction almost at right angles"),
    "ascent": ({"cosine": -0.5}, "direction almost at right angles"),
    "nan": ({"condition": np.nan}, "not finite"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_in_words_for_each_parameter(name):
    changes, verdict = VERDICTS[name]
    report = report_of(**changes)
    assert report.verdicts()["layer/w"].startswith(verdict)
    text = str(report)
    assert "1 parameters with roots" in text
    assert f"1 of 1: {verdict}" in text
    assert (verdict == "healthy") == (report.verdicts() == {"layer/w": "healthy"})


def test_scalars_are_the_ones_to_worry_about():
    report = report_of(condition=9.0, unexcited=3, cosine=0.2, at_risk=1)
    assert report.scalars() == {
        "layer/w/norm": 4.0,
        "layer/w/condition": 9.0,
        "layer/w/asymmetry": 0.1,
        "layer/w/at_risk": 1.0,
        "layer/w/unexcited": 3.0,
        "layer/w/cosine": 0.2,
    }
    assert json.dumps(report.scalars())


def test_roots_that_no_refresh_has_moved_are_said_to_be_so():
    params, state, _ = trained(jorge(0.1, update_interval=1), dead_row=True)
    fresh = diagnostics(jorge(0.1).init(params), params)
    assert fresh.verdicts() == {"w": "roots have barely moved: refresh more often"}
    moved = diagnostics(state, params).verdicts()["w"]
    assert moved.startswith("healthy, with rows that no gradient has excited")
    bare = diagnostics(jorge(0.1).init(params["w"]), params["w"])
    assert list(bare.verdicts()) == [""]


@pytest.mark.parametrize("rule", [BinomialSeries(), Whitening()])
def test_roots_of_any_length_start_with_a_condition_of_one(rule):
    """Where the estimate of the largest eigenvalue is exact, the shifted root is 0."""
    params = {str(length): jnp.zeros((length, length)) for length in range(2, 18)}
    state = jorge(0.1, rule=rule).init(params)

    def conditions(state):
        scalars = diagnostics(state, params).scalars()
        found = {n: scalars[f"{n}/condition"] for n in params}
        return {n: value for n, value in found.items() if not 1 <= value < 1.0001}

    assert conditions(state) == {}
    # The last row and column of each root, halved or zero.
    for factor, condition in ((0.5, 2), (0, np.inf)):
        shrunk = jax.tree.map(
            lambda x, factor=factor: x.at[:, -1].mul(factor) if x.ndim == 3 else x,
            state,
        )
        found = conditions(shrunk)
        assert found == pytest.approx(dict.fromkeys(params, condition), rel=1e-3)


def test_a_report_is_a_tree():
    report = report_of()
    doubled = jax.tree.map(lambda x: 2 * x, report)
    assert isinstance(doubled, Diagnostics)
    assert doubled.keys() == report.keys()
    assert doubled["layer/w/cosine"].tolist() == [1.0, 1.2]
