"""Options: bad ones are refused with option, value, rule and remedy; good ones pass."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jorge_optax import (
    BinomialSeries,
    MatrixView,
    Numerics,
    Sharded,
    Spread,
    Tiling,
    Whitening,
    describe,
    from_adamw,
    from_scratch,
    from_sgd,
    from_sgd_as_published,
    graft,
    jorge,
    lengths,
    scale_by_jorge,
    tuning,
    views,
)
from tests.helpers.trees import (
    arrays,
    close,
    differs,
    equal,
    one_update,
    saying,
    structs,
)

NAN, INF = float("nan"), float("inf")
MESH = jax.make_mesh((1,), ("data",))
COSINE = optax.cosine_decay_schedule(0.1, 90)
SGD, ADAM, SHAPE = lengths.SGD, lengths.Adam, lengths.Shape
PUBLISHED, CHOOSE = from_sgd_as_published, tuning.choose_update_interval
THIRDS, GROWING = tuning.thirds_decay_schedule, tuning.growing_interval_schedule
# What is passed where a row does not say otherwise.
REQUIRED = {
    jorge: {"learning_rate": 0.1},
    from_sgd: {"learning_rate": 0.1},
    from_adamw: {"learning_rate": 0.1},
    from_scratch: {"total_steps": 90},
    PUBLISHED: {"learning_rate": 0.1, "total_steps": 90},
    THIRDS: {"peak_value": 0.1, "total_steps": 90},
    GROWING: {"last": 4},
    graft: {"magnitude": optax.identity(), "direction": optax.identity()},
    Sharded: {"mesh": MESH, "specs": {}},
    Spread: {"sharding": NamedSharding(MESH, P("data"))},
}


class NotHashable(dict):
    """A view that is compared by value."""

    def __call__(self, path, shape):
        return None


class Unknown(Whitening):
    """A rule that asks for a momentum that there is not."""

    momentum = "heavy"


INJECT = "a number, got a function ... optax.inject_hyperparams(jorge)(..., "
MATRICES = "lambda params: jax.tree.map(lambda p: p.ndim > 1, params)"
RULES = "BinomialSeries(), which is the paper's rule, Whitening() ... jorge_optax.Rule"
NOT_A_RATE = "is not a learning-rate schedule ... tuning.growing_interval_schedule(50)"
SHARE = "finite and at least 0, and at most 1e+06, got {} ... nothing of the gradient"
THREE = "an integer of at least 3 and below 2**31, got {} ... for a shorter run"
MASK = "has no argument mask: write weight_decay_mask=..."
DTYPE = "must name a floating-point dtype, got {}. Choose 'float32', 'bfloat16' or"
RANGE = "must be a floating-point dtype with float32's range of exponents, got"
X64 = "needs jax's 64-bit mode, which is off ... jax_enable_x64 ... 'float32'"
EPOCHS = {"total_steps": None, "epochs": 9, "steps_per_epoch": 5}
# Function, option ("" for several), bad values, words of the message, which also has
# the option's name. "{}" stands for the value, " ... " for anything.
TYPE_ERRORS = (
    # Rates and schedules.
    (jorge, "learning_rate", (None, "0.1", True, [1]), "number or a schedule, got {}"),
    (jorge, "learning_rate", (optax.sgd(0.1),), "Pass the arguments ... from_sgd("),
    (jorge, "learning_rate", (optax.adamw(0.1),), "for optax.adamw(1e-3), from_adamw("),
    (PUBLISHED, "learning_rate", (COSINE,), "write from_sgd(schedule, ..., rule="),
    (jorge, "learning_rate", (optax.sgd,), "a function of the step that returns one"),
    (jorge, "learning_rate", (lambda n: jnp.ones(3),), "an array of shape (3,) at"),
    (jorge, "learning_rate", (lambda n, x: 0.1,), "calling it with step 0 failed with"),
    (from_scratch, "learning_rate", (COSINE,), "jorge(schedule, rule=Whitening(),"),
    (THIRDS, "peak_value", (COSINE, None), "peak_value must be a number, got"),
    # Numbers.
    (jorge, "momentum", ("0.9", None), "a number, got {}. A value of 0.9 is usual"),
    (jorge, "momentum", (COSINE,), INJECT + "momentum=schedule)"),
    (jorge, "weight_decay", ("0.1", None), "a number, got {}"),
    (jorge, "weight_decay", (COSINE,), INJECT + "weight_decay=schedule)"),
    (from_adamw, "b1", (COSINE,), "a number, got a function ... Pass a number."),
    (BinomialSeries, "eps", ("1e-6", None), "a number, got {}. Every root starts"),
    (ADAM, "b2", (None, "0.9"), "lengths.Adam.b2 must be a number, got {}"),
    # What is no number.
    (jorge, "rule", (Whitening,), RULES + " ... or None, got Whitening: write"),
    (jorge, "rule", ("whitening", "Whitening"), RULES + " ... write rule=Whitening()"),
    (jorge, "rule", (SGD(), 3), RULES + " ... or None, got {}"),
    (jorge, "tiling", (256, Tiling, {}, 0), "a jorge_optax.Tiling or None, got {}"),
    (jorge, "numerics", ("bfloat16", {}), "Numerics, 'exact', 'reduced' or None, got"),
    (jorge, "others", (0.9, "adam", optax.sgd), "optax optimizer or None, got {}"),
    (jorge, "weight_decay_mask", ("w", True), "function ... got {} ... " + MATRICES),
    (jorge, "weight_decay_mask", (jnp.asarray(False),), "tree of booleans ... got {}"),
    (jorge, "weight_decay_mask", ({"w": 0.5},), "tree of ... got 0.5 at ['w']"),
    (Tiling, "max_dim", (True, 2.0, "8", None), "a Python int, since ... got {}"),
    (Tiling, "view", (None, 3, MatrixView((0,), (1,))), "function of a path ... {}"),
    (Tiling, "view", (NotHashable(),), "hashable ... got {} ... frozen dataclass"),
    (Tiling, "leave_out", ("embed",), "tuple of words, got {}. Write leave_out=({},)"),
    (Tiling, "leave_out", (["a"], ("",), (3,)), "must be a tuple of words, got {}"),
    (views.scanned, "", ({"view": None},), "takes the words to look for ... got ()"),
    (Spread, "sharding", (P("data"), None), "a jax.sharding.NamedSharding ... got {}"),
    (jorge, "sharding", ("data", P()), "or jorge_optax.Sharded, or None, got {}"),
    (Sharded, "mesh", (None, "data"), "a jax.sharding.Mesh, such as ... got {}"),
    (Sharded, "specs", ({"w": "data"},), "tree of PartitionSpec ... got 'data' at 'w'"),
    (graft, "magnitude", (0.9, None), "graft: magnitude must be ... got {}"),
    (graft, "direction", (0.9, None), "graft: direction must be ... got {}"),
    # Names.
    (from_adamw, "mask", (None,), "from_adamw " + MASK),
    (jorge, "block_size", (128,), "jorge() ... unexpected keyword argument"),
)
VALUE_ERRORS = (
    # Rates and schedules.
    (jorge, "learning_rate", (-0.1, NAN, INF), "at least 0, got {}. ... subtracts"),
    (jorge, "learning_rate", (lambda n: -0.1,), "got -0.1 at step 0 of its schedule"),
    (from_scratch, "learning_rate", (0.0, -0.1), "positive ... got {} ... 0.0425"),
    (THIRDS, "peak_value", (-0.1,), "must be finite and at least 0, got {}"),
    (jorge, "update_interval", (0, 2.5, NAN, 2**31), "a schedule of ... {} ... pass 1"),
    (jorge, "update_interval", (-3, INF, True), "an integer of at least 1 ... got {}"),
    (jorge, "update_interval", (COSINE,), "got 0.1 at step 0 ... " + NOT_A_RATE),
    (jorge, "update_interval", (lambda n: 9 - n,), "at step 1000 ... " + NOT_A_RATE),
    # Numbers.
    (jorge, "momentum", (1, 1.5, -0.1, NAN, True), "[0, 1), got {}. A value of 0.9"),
    (from_sgd, "momentum", (1.0, -0.1), "[0, 1), got {}. Jorge's decay is SGD's"),
    (from_adamw, "b1", (1.0, -0.1), "b1 must lie in [0, 1), got {}"),
    (jorge, "weight_decay", (-1e-4, NAN, INF), "must be finite and at least 0, got {}"),
    (BinomialSeries, "eps", (0, -1e-6, NAN, INF, True), "got {} ... eps**(-1/4)"),
    (BinomialSeries, "damping", (-1e-6, NAN, INF, 1e38, True), SHARE),
    (Whitening, "damping", (-1e-6, NAN, INF, 1e38, True), SHARE),
    (Whitening, "beta2", (1.0, 0.0, NAN), "Whitening.beta2 must lie in (0, 1)"),
    (Whitening, "early_refreshes", (-1, 2.5), "an integer of at least 0 ... got {}"),
    (SGD, "scale", (0.0, -1.0, INF), "lengths.SGD.scale must be positive ... got {}"),
    (ADAM, "scale", (0.0,), "lengths.Adam.scale must be positive and finite, got {}"),
    (ADAM, "b2", (1.0,), "lengths.Adam.b2 must lie in [0, 1), got {}"),
    (ADAM, "eps", (0.0,), "lengths.Adam.eps must be positive and finite, got {}"),
    (SHAPE, "others", (-1.0,), "lengths.Shape.others must be positive ... got {}"),
    (SHAPE, "b2", (1.0,), "lengths.Shape.b2 must lie in [0, 1), got {}"),
    # Lengths of training.
    (from_scratch, "total_steps", (0, 90.5), "an integer of at least 1 ... got {}"),
    (from_scratch, "warmup_steps", (90, 91), "longer than its warm-up ... steps={}"),
    (PUBLISHED, "total_steps", (None,), "Pass the length ... got total_steps={}"),
    (PUBLISHED, "total_steps", (0, 2, 90.5), THREE),
    (PUBLISHED, "epochs", (90,), "either as total_steps or as epochs and steps_per"),
    (PUBLISHED, "", (dict(total_steps=None, epochs=9),), "Pass the length of training"),
    (PUBLISHED, "", (EPOCHS | {"epochs": 2},), "epochs must be ... 3 ... got 2. Pass"),
    (PUBLISHED, "", (EPOCHS | {"steps_per_epoch": 10.5},), "got 10.5. Round it"),
    (PUBLISHED, "warmup_steps", (31,), "must lie in [0, 30], so ... decay; got {}"),
    (PUBLISHED, "warmup_steps", (1.5,), "an integer of at least 0 ... got {}"),
    (THIRDS, "warmup_steps", (31,), "must lie in [0, 30], so that ... decay; got {}"),
    (GROWING, "first", (8,), "need 1 <= first <= last, got first=8, last=4"),
    (GROWING, "refreshes", (0, 1.5), "an integer of at least 1 ... got {}"),
    (CHOOSE, "", ({},), "Pass either loss, params and batch, or make_step"),
    (CHOOSE, "", (dict(make_step=jorge, tolerance=0),), "must be positive, got 0"),
    # Dtypes, precisions, tiles.
    (Numerics, "roots", ("none", 3), DTYPE),
    (Numerics, "roots", ("float16",), RANGE + " float16 ... Choose 'float32'"),
    (Numerics, "roots", ("int32", "bool", "complex64"), RANGE),
    (Numerics, "roots", ("float64",), "Numerics.roots='float64' " + X64),
    (Numerics, "momenta", ("float16", "int32"), RANGE),
    (Numerics, "apply", ("tf32",), "jax.numpy.matmul takes, got {}. Choose 'highest'"),
    (Numerics, "refresh", ("tf32",), "matmul takes, got {}. Choose 'highest'"),
    (Spread, "gather_dtype", ("float16",), RANGE + " float16 ... Choose 'float32'"),
    (Spread, "sharding", (NamedSharding(MESH, P()),), "divide the first axis ... P"),
    (jorge, "sharding", (NamedSharding(MESH, P(None, "data")),), "the first axis"),
    (Tiling, "max_dim", (0, -1), "Tiling.max_dim must be at least 1, got {}"),
    # Rules and lengths.
    (jorge, "", (dict(rule=Unknown()),), "Unknown.momentum must be ... got 'heavy'"),
    (jorge, "grafting", ("adam", "Adam"), "got {}: write grafting=lengths.Adam()"),
    (jorge, "grafting", (SHAPE, "shape"), "write grafting=lengths.Shape()"),
    (jorge, "grafting", (optax.scale_by_adam(),), "write graft(transformation, scale"),
    (jorge, "grafting", ("", 3, optax.sgd, ("sgd",)), "lengths.Adam(), or None, got"),
)
REFUSALS = [
    pytest.param(error, f, option, value, words, id=f"{f.__name__}-{option}-{i}")
    for error, rows in ((TypeError, TYPE_ERRORS), (ValueError, VALUE_ERRORS))
    for f, option, values, words in rows
    for i, value in enumerate(values)
]


@pytest.mark.parametrize(("error", "function", "option", "value", "words"), REFUSALS)
def test_a_bad_option_is_refused(error, function, option, value, words):
    options = {option: value} if option else value
    parts = words.replace("{}", repr(value)).split(" ... ")
    with pytest.raises(error, match=saying(*parts)) as refused:
        function(**{**REQUIRED.get(function, {}), **options})
    assert option in str(refused.value)


FUNCTIONS = (jorge, scale_by_jorge, from_sgd, from_adamw, from_scratch, PUBLISHED)
NUMBERS = {"momentum": 1.0, "b1": 1.0, "weight_decay": -1.0, "update_interval": 0}
OTHERS = {"rule": "whitening", "grafting": "nothing", "weight_decay_mask": "kernel"}
OTHERS |= {"leave_out": "embed", "tiling": 256, "numerics": "none", "sharding": "data"}
SHARED = {**NUMBERS, **OTHERS, "others": 0.9}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_refuses_what_jorge_refuses(function):
    takes = inspect.signature(function).parameters.keys() & SHARED.keys()
    assert len(takes) >= 5
    for option in takes:
        with pytest.raises((TypeError, ValueError), match=option) as refused:
            function(**{**REQUIRED.get(function, {}), option: SHARED[option]})
        assert "must" in str(refused.value)


MASKS = (
    (lambda params: "kernel", "got 'kernel'"),
    (lambda params: {"w": 0.5, "b": False}, "got 0.5 at ['w']"),
    (lambda params: {"w": True}, "Its tree differs from theirs"),
    ({"w": True}, "Its tree differs from theirs"),
    ({"w": True, "b": False}, None),
    (lambda params: True, None),
)


@pytest.mark.parametrize(("mask", "words"), MASKS)
def test_a_mask_must_be_booleans_of_the_tree_of_the_parameters(mask, words):
    tx = jorge(0.1, weight_decay=0.1, weight_decay_mask=mask)
    if words is None:
        tx.init(arrays(w=(3, 2), b=(2,)))
    else:
        with pytest.raises((TypeError, ValueError), match=saying(words)):
            tx.init(arrays(w=(3, 2), b=(2,)))


def test_an_injected_mask_is_not_taken_for_a_schedule():
    """inject_hyperparams calls the mask with the step, which gives False."""
    zeros = {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}
    params = jax.tree.map(jnp.ones_like, zeros)
    mask = {"weight_decay_mask": lambda p: jax.tree.map(lambda x: x.ndim > 1, p)}
    message = saying("weight_decay_mask must be", "static_args=('weight_decay_mask',)")
    with pytest.raises(TypeError, match=message):
        optax.inject_hyperparams(jorge)(0.1, weight_decay=0.5, **mask).init(params)
    inject = optax.inject_hyperparams(jorge, static_args=("weight_decay_mask",))
    tx = inject(0.1, weight_decay=0.5, **mask)
    updates, _ = tx.update(zeros, tx.init(params), params)
    close(updates, {"w": -0.05 * params["w"], "b": zeros["b"]})


# Answers of a view of a parameter of three axes.
VIEWS = (
    (MatrixView((0,), (3,)), "must each name at least one axis in [-3, 3)"),
    (MatrixView((), (0,)), "must each name at least one axis in [-3, 3)"),
    (MatrixView((2,), (-1,)), "names an axis twice"),
    (MatrixView(("rows",), (1,)), ""),
    (MatrixView(0, 1), ""),
    *((answer, "not a MatrixView") for answer in (7, "ab", (0, 1, 2), {})),
)


@pytest.mark.parametrize(("answer", "rule"), VIEWS, ids=str)
def test_a_view_must_fit_its_parameter(answer, rule):
    params = {"layers": [structs(kernel=(3, 2, 4))]}
    message = saying(
        f"Tiling.view gave {answer!r} for the parameter 'layers/0/kernel' of shape "
        "(3, 2, 4)",
        rule,
        "Return a MatrixView that names existing axes once each, "
        "jorge_optax.views.default_view(path, shape), or None",
    )
    with pytest.raises(ValueError, match=message):
        jorge(0.1, tiling=Tiling(view=lambda path, shape: answer)).init(params)


SPECS = {
    "data": "give a PartitionSpec of at most 2 axes",
    P(None, None, "data"): "give a PartitionSpec of at most 2 axes",
    P("data"): "which the mesh {'data': 4} does not divide evenly",
    P(None, "model"): "which the mesh {'data': 4} does not divide evenly",
}


@pytest.mark.parametrize("spec", SPECS)
def test_specs_must_fit_parameters_and_mesh(spec):
    mesh = jax.sharding.AbstractMesh((4,), ("data",))
    tx = jorge(0.1, sharding=Sharded(mesh, lambda path, shape: spec))
    words = f"Sharded.specs gave {spec!r}", "'w' of shape (6, 4)", SPECS[spec]
    with pytest.raises(ValueError, match=saying(*words)):
        describe(structs(w=(6, 4)), tx)


# Good values pass.

EDGES = {
    "learning_rate": (0, jnp.float32(0.1), lambda count: 0.1 / (1 + count)),
    "momentum": (0, 0.999),
    "weight_decay": (0,),
    "weight_decay_mask": ({"w": jnp.asarray(True)},),
    "rule": (BinomialSeries(1e-300), BinomialSeries(1e40), Whitening(damping=0)),
    "update_interval": (1, 3.0, lambda count: 2.0, GROWING(50)),
    "numerics": (None, "exact", Numerics("bfloat16", "bfloat16", "default", "high")),
    "tiling": (Tiling(1), Tiling(view=lambda path, shape: None)),
    "grafting": ("sgd", None, SHAPE(), ADAM(eps=1e-30)),
    "sharding": (NamedSharding(MESH, P("data")),),
}


@pytest.mark.parametrize("option", EDGES)
def test_values_at_the_edge_of_the_allowed_pass(option):
    for value in EDGES[option]:
        tx = jorge(**{"learning_rate": 0.1, "weight_decay": 0.1, option: value})
        jax.eval_shape(tx.init, structs(w=(3, 2)))


def test_integers_that_int32_does_not_hold_are_numbers():
    params = arrays(w=(3, 2), b=(3,))
    for make in (
        jorge,
        lambda value: jorge(0.1, weight_decay=value, grafting=SGD(scale=value)),
        lambda value: jorge(0.1, grafting=ADAM(eps=value)),
        lambda value: jorge(0.1, grafting=SHAPE(others=value)),
    ):
        expected = one_update(make(2.0**32), params)
        equal(one_update(make(np.int64(2**32)), params), expected)
        differs(equal, one_update(make(2.0**33), params), expected)
