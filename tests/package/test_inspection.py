"""describe and diagnostics: exact, pure, and at home in any tree."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import (
    Numerics,
    Tiling,
    describe,
    diagnostics,
    from_adamw,
    from_scratch,
    from_sgd,
    jorge,
    lengths,
    reshard_state,
    scale_by_jorge,
    views,
)
from tests.helpers.trees import (
    QUICK,
    arrays,
    close,
    differs,
    equal,
    normal,
    saying,
    structs,
)

PARAMS = {
    **structs(conv=(3, 3, 4, 8), scan=(3, 5, 6), scalar=(), column=(17, 1)),
    "dense": structs(kernel=(70, 33), bias=(33,)),
    "half": jax.ShapeDtypeStruct((20, 20), "bfloat16"),
}


def bytes_of(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


DESCRIBED = (
    None,
    jorge(0.1, tiling=Tiling(16), numerics=Numerics(momenta="bfloat16")),
    jorge(0.1, grafting=lengths.Adam()),
    jorge(0.1, grafting=lengths.Shape(), weight_decay=0.1, numerics="reduced"),
    jorge(0.1, grafting=None, others=optax.adamw(1e-3)),
    scale_by_jorge(momentum=0.9),
    from_sgd(0.1, leave_out=("dense",)),
)


@pytest.mark.parametrize("tx", DESCRIBED)
def test_the_size_of_the_state_is_exact_and_nothing_is_allocated(tx):
    table = describe(PARAMS, tx)
    state = jax.eval_shape((tx or jorge(0)).init, PARAMS)
    assert table.state_bytes == bytes_of(state)
    assert table.parameter_bytes == bytes_of(PARAMS)
    # The rows add up, but for counts.
    assert 0 <= table.state_bytes - sum(x.state_bytes for x in table.leaves) <= 32
    assert json.loads(json.dumps(table.to_dict()))["rule"] in str(table)


def test_describe_tells_what_happens_to_each_parameter():
    tiling = Tiling(40, view=views.scanned("scan"), leave_out=("half",))
    table = describe(PARAMS, jorge(0.1, tiling=tiling))
    rows = {leaf.path: leaf for leaf in table.leaves}
    found = {k: (x.matrix, x.tiles, x.preconditioned) for k, x in rows.items()}
    no_matrix = "no: not a matrix"
    assert found == {
        "column": ("-", "-", "no: a bias, or a side shorter than 2"),
        "conv": ("36x8", "1 of 36x8", "yes"),
        "dense/bias": ("-", "-", no_matrix),
        "dense/kernel": ("70x33", "2 of 35x33", "yes"),
        "half": ("-", "-", "no: left out"),
        "scalar": ("-", "-", no_matrix),
        "scan": ("3 of 5x6", "3 of 5x6", "yes"),
    }
    # Two float32 momenta and two roots with a scale each; one momentum.
    dense = 2 * 4 * (2 * 35 * 33 + 35**2 + 33**2 + 2)
    assert rows["dense/kernel"].state_bytes == dense
    assert rows["column"].state_bytes == 4 * 17
    ratio = rows["conv"].state_bytes / (4 * 288)
    conv = next(line for line in str(table).splitlines() if line.startswith("conv"))
    assert conv.split()[-3:] == [f"{ratio:.1f}", "x", "yes"]


# What the default does not fit, with the option that does; "" where it fits.
LAYERS = {
    "embed/embedding": ((50257, 768), "leave_out=('embed"),
    "dense/lora_a": ((768, 4), "leave_out=('lora_a',)"),
    "depthwise/kernel": ((3, 3, 1, 256), "leave_out=('depthwise',)"),
    "stages/conv/kernel": ((4, 3, 3, 64, 64), "view=views.scanned('stages')"),
    "layers/attention/query": ((12, 768, 12, 64), "view=views.scanned('layers')"),
    "experts/up": ((8, 512, 2048), "view=views.scanned('experts')"),
    "attention/query/kernel": ((768, 12, 64), ""),
    "attention/out/kernel": ((12, 64, 768), ""),
    "fc/kernel": ((2048, 1000), ""),
    "conv3d/kernel": ((3, 3, 3, 32, 64), ""),
    "stem/kernel": ((7, 7, 3, 64), ""),
}


def advised(note):
    """The tiling that a note asks for: its code is run."""
    (code,) = re.findall(r"tiling=(Tiling\(.*\))", note)
    return eval(code, {"Tiling": Tiling, "views": views})


@pytest.mark.parametrize("path", LAYERS)
def test_describe_names_the_remedy_where_the_default_does_not_fit(path):
    shape, remedy = LAYERS[path]
    params = structs(**{path: shape})
    table = describe(params)
    if not remedy:
        assert table.notes == ()
        assert " !" not in str(table)
        return
    (note,) = table.notes
    assert " !" in str(table) or "lora" not in path  # 66 times the parameter
    assert note.startswith(f"{path} {shape}: ")
    assert remedy in note
    assert f"note: {note}" in str(table)
    # The remedy is one: with it there is nothing to note.
    assert describe(params, jorge(0.1, tiling=advised(note))).notes == ()


@pytest.mark.parametrize("recipe", [jorge, from_sgd, from_adamw, from_scratch])
def test_a_recipe_gets_the_same_advice_as_code_that_runs(recipe):
    """Each line of it, and all together; healthy parameters are left alone."""
    shapes = {path: shape for path, (shape, _) in LAYERS.items() if "embed" not in path}
    params = structs(**shapes)
    plain, notes = describe(params), describe(params, recipe(9)).notes
    assert notes == plain.notes
    assert len(notes) > 4
    for note in notes:
        fewer = describe(params, recipe(9, tiling=advised(note))).notes
        assert len(fewer) < len(notes)
    table = describe(params, recipe(9, tiling=advised(notes[-1])))
    assert table.notes == ()
    rows = {leaf.path: leaf for leaf in table.leaves}
    assert rows["layers/attention/query"].matrix == "12 of 768x768"
    for leaf in plain.leaves:
        if not LAYERS[leaf.path][1]:
            assert rows[leaf.path].tiles == leaf.tiles


def test_advice_keeps_the_tiling_that_it_changes():
    # "a" is in the path of nearly every parameter, "kernel" in that of two.
    shapes = {"attention/kernel": (768, 768), "thin/kernel": (4, 768)}
    shapes |= {"lora/a": (768, 4), "lora/b": (4, 768), "out": (6, 5)}
    params, own = structs(**shapes), Tiling(128, leave_out=("out",))
    lora, thin, together = describe(params, jorge(0.1, tiling=own)).notes
    assert lora.startswith("lora/a (768, 4) and 1 more: ")
    assert advised(lora) == Tiling(128, leave_out=("out", "lora"))
    assert advised(thin) == Tiling(128, leave_out=("out", "thin"))
    table = describe(params, jorge(0.1, tiling=advised(together)))
    assert [x.path for x in table.leaves if x.matrix != "-"] == ["attention/kernel"]


FOREIGN = {
    "another": optax.sgd(0.1),
    "a chain": optax.chain(optax.clip(1.0), jorge(0.1)),
    "MultiSteps": optax.MultiSteps(jorge(0.1), 2),
    "parameters": arrays(w=(3, 2)),
    "a recipe that was not called": from_adamw,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_only_our_own_transformation_is_described(name):
    tx, params, other = jorge(0.1), arrays(w=(3, 2)), FOREIGN[name]
    state = tx.init(params)
    for function, call in {
        "describe": lambda: describe(params, other),
        "diagnostics": lambda: diagnostics(state, params, None, other),
        "reshard_state": lambda: reshard_state(state, other, params),
        "saved_by": lambda: reshard_state(state, tx, params, saved_by=other),
    }.items():
        message = saying(f"{function} takes the transformation that jorge", "from_sgd")
        with pytest.raises(TypeError, match=message):
            call()


# Diagnostics.


def trained(tx, params, dead_row=False):
    """A state after some steps, and the last gradients."""

    def step(state, gradient):
        return tx.update(gradient, state, params)[1], None

    grads = {k: normal(i, (12, *x.shape)) for i, (k, x) in enumerate(params.items())}
    if dead_row:
        grads["w"] = grads["w"].at[:, 2].set(0)
    train = jax.jit(lambda g: jax.lax.scan(step, tx.init(params), g)[0])
    return train(grads), jax.tree.map(lambda g: g[-1], grads)


TX = jorge(0.1, update_interval=1)
MATRIX = {"w": jnp.zeros((8, 5)), "b": jnp.zeros((5,))}


def test_diagnostics_agree_with_linear_algebra():
    state, grads = trained(TX, MATRIX)
    report = diagnostics(state, MATRIX, grads, TX)
    roots = optax.tree.get(state, "roots")
    gradient = np.asarray(grads["w"], np.float64)
    matrices = []
    for side, g in (("left", gradient), ("right", gradient.T)):
        unit, scale = jax.tree.map(lambda x: x[0], getattr(roots, side)["8x5"])
        root = float(scale) * np.asarray(unit, np.float64)
        matrices.append(root)
        values = np.linalg.eigvalsh((root + root.T) / 2)
        name = f"w/{side}/"
        found = {k[len(name) :]: float(v[0]) for k, v in report.items() if name in k}
        assert found["norm"] == pytest.approx(np.linalg.norm(root), rel=1e-5)
        assert values[-1] * 0.9 < found["largest"] <= values[-1] * 1.0001
        condition = values[-1] / values[0]
        assert 0.7 * condition < found["condition"] <= 1.001 * condition
        asymmetry = np.linalg.norm(root - root.T) / np.linalg.norm(root)
        assert found["asymmetry"] == pytest.approx(asymmetry, rel=1e-3)
        norm = np.linalg.norm(np.linalg.matrix_power(root, 4) @ g @ g.T)
        assert found["beta2"] == pytest.approx(norm / (norm + 1), rel=1e-3)
        assert found["growth"] == pytest.approx((norm / (norm + 1)) ** -0.25, rel=1e-3)
        assert found["unexcited"] == 0
    direction = matrices[0] @ gradient @ matrices[1]
    cosine = np.sum(direction * gradient)
    cosine /= np.linalg.norm(direction) * np.linalg.norm(gradient)
    assert float(report["w/cosine"][0]) == pytest.approx(cosine, rel=1e-3)


def test_diagnostics_count_rows_that_no_gradient_has_excited(monkeypatch):
    state, _ = trained(TX, MATRIX, dead_row=True)
    # It over-counts sharded matrices elsewhere.
    monkeypatch.setattr(jnp.linalg, "norm", None)
    jax.clear_caches()
    report = diagnostics(state, MATRIX, None, TX)
    assert report["w/left/unexcited"].tolist() == [1]
    assert report["w/right/unexcited"].tolist() == [0]
    fresh = diagnostics(TX.init(MATRIX), MATRIX, None, TX)
    assert fresh.verdicts() == {"w": "roots have barely moved: refresh more often"}
    assert fresh.scalars()["w/condition"] == pytest.approx(1, rel=1e-3)


def test_diagnostics_find_the_state_wherever_it_is_and_leave_it_alone():
    state, grads = trained(TX, MATRIX)
    plain = diagnostics(state, MATRIX, grads, TX)
    copy = jax.tree.map(jnp.array, state)
    for wrapped in (
        (optax.EmptyState(), state),
        {"opt_state": [state, {"step": 3}]},
        optax.ApplyIfFiniteState(0, True, 0, state),
    ):
        close(dict(diagnostics(wrapped, MATRIX, grads, TX)), dict(plain))
    jitted = jax.jit(diagnostics, static_argnums=3)(state, MATRIX, grads, TX)
    assert type(jitted) is type(plain)  # a tree
    close(dict(jitted), dict(plain))
    equal(state, copy)


def test_diagnostics_refuse_what_does_not_fit_the_state():
    state, grads = TX.init(MATRIX), MATRIX
    for none, number in ((optax.sgd(0.1).init(MATRIX), 0), ((state, state), 2)):
        with pytest.raises(ValueError, match=f"one JorgeState in it, found {number}"):
            diagnostics(none, MATRIX, None, TX)
    other = {**MATRIX, "w": jnp.zeros((9, 5))}
    with pytest.raises(ValueError, match=r"make stacks of .*9x5.* the state has .*8x5"):
        diagnostics(state, other, None, TX)
    for gradients in (other, {**MATRIX, "v": grads["w"]}):
        with pytest.raises(ValueError, match="gradients have another tree or other sh"):
            diagnostics(state, MATRIX, gradients, TX)
    with pytest.raises(ValueError, match=r"the state has .*Tiling\(max_dim=2"):
        diagnostics(state, MATRIX, None, jorge(0.1, tiling=Tiling(2)))
    bias = {"b": jnp.zeros(3)}
    assert diagnostics(TX.init(bias), bias, None, TX) == {}


def test_diagnostics_have_one_number_for_each_tile_of_a_parameter():
    """A parameter's numbers are those that it has alone in a tree."""
    tx = jorge(0.1, update_interval=1, tiling=Tiling(4))
    params = arrays(a=(9, 4), b=(4, 4), c=(3, 8))

    def report(params):
        state = jax.jit(tx.update, compiler_options=QUICK)(params, tx.init(params))[1]
        return dict(diagnostics(state, params, params, tx))

    together = report(params)
    assert [len(together[f"{name}/left/norm"]) for name in params] == [3, 1, 2]
    alone = report({"c": params["c"]})  # its tiles share a stack with those of a
    close({name: together[name] for name in alone}, alone)
    differs(close, together["a/left/norm"][:2], alone["c/left/norm"])


# Numbers of one parameter of two tiles that change, and the verdict.
VERDICTS = (
    ({}, "healthy"),
    ({"unexcited": 3}, "healthy, with rows that no gradient has excited"),
    ({"at_risk": 1}, "roots at risk of ascent: keep them in float32"),
    ({"condition": 1e7}, "roots close to singular: add damping"),
    ({"cosine": -0.5}, "direction almost at right angles"),
    ({"condition": np.nan}, "not finite"),
)


def report_of(worse):
    """A healthy report on two tiles, with some numbers of the second changed."""
    healthy = {"norm": 4.0, "condition": 5.0, "asymmetry": 0.1, "cosine": 0.5}
    healthy |= {"at_risk": 0.0, "unexcited": 0.0}
    report = type(diagnostics(TX.init({}), {}, None, TX))()
    for name, value in healthy.items():
        for side in ("",) if name == "cosine" else ("left/", "right/"):
            numbers = [value, worse.get(name, value)]
            report[f"layer/w/{side}{name}"] = np.array(numbers)
    return report


@pytest.mark.parametrize(("worse", "verdict"), VERDICTS)
def test_a_verdict_in_words_for_each_parameter(worse, verdict):
    report = report_of(worse)
    assert report.verdicts()["layer/w"].startswith(verdict)
    assert (verdict == "healthy") == (report.verdicts() == {"layer/w": "healthy"})
    assert f"1 parameters with roots\n1 of 1: {verdict}" in str(report)


def test_scalars_are_the_ones_to_worry_about():
    worse = {"condition": 9.0, "unexcited": 3, "cosine": 0.2, "at_risk": 1}
    scalars = json.loads(json.dumps(report_of(worse).scalars()))
    expected = {"norm": 4.0, "condition": 9.0, "asymmetry": 0.1, "cosine": 0.2}
    expected |= {"at_risk": 2.0, "unexcited": 6.0}  # summed
    assert scalars == {f"layer/w/{name}": x for name, x in expected.items()}
