"""Options that are no numbers, and views: errors name the remedy; good ones pass."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

from jorge_optax import (
    BinomialSeries,
    MatrixView,
    Tiling,
    Whitening,
    default_view,
    graft,
    growing_interval_schedule,
    jorge,
    lengths,
    scale_by_jorge,
)
from tests.helpers.errors import arrays, differs, every_transformation, saying

NAN = float("nan")


# Options, at construction.

RULES = {
    "a class": (Whitening, "got the class Whitening: write rule=Whitening()"),
    "the paper's": (BinomialSeries, "write rule=BinomialSeries()"),
    "a name": ("whitening", "got 'whitening': write rule=Whitening()"),
    "an old name": ("composite", "got 'composite': write rule=Whitening(), which"),
    "a length": (lengths.SGD(), "got SGD(scale=1.0)"),
}


@every_transformation
@pytest.mark.parametrize("name", RULES)
def test_rule_must_be_an_instance(make, name):
    rule, found = RULES[name]
    message = saying("rule must be BinomialSeries()", "Whitening()", "None", found)
    with pytest.raises(TypeError, match=message):
        make(rule=rule)


MASKS = {
    "a string": ("kernel", "got 'kernel'"),
    "a scalar": (True, "got True"),
    "an array": (jnp.asarray(False), "got Array(False"),
    "strings": ({"w": "kernel"}, "got 'kernel' at ['w']"),
    "numbers": ({"w": 0.5}, "got 0.5 at ['w']"),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_mask_must_be_a_tree_or_a_function(name, weight_decay):
    mask, found = MASKS[name]
    message = saying(
        "weight_decay_mask must be a tree of booleans like the parameters, or a "
        "function of the parameters that returns one",
        found,
        "lambda params: jax.tree.map(lambda p: p.ndim > 1, params)",
    )
    with pytest.raises(TypeError, match=message):
        jorge(0.1, weight_decay=weight_decay, weight_decay_mask=mask)


def matrices(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


def test_a_mask_that_is_a_function_must_return_booleans():
    params = arrays(w=(3, 2), b=(2,))

    def make(returned):
        return jorge(0.1, weight_decay=0.1, weight_decay_mask=lambda params: returned)

    message = saying("weight_decay_mask must be a tree of booleans", "got 'kernel'")
    with pytest.raises(TypeError, match=message):
        make("kernel").init(params)
    with pytest.raises(TypeError, match=saying("got 0.5 at ['w']")):
        make({"w": 0.5, "b": False}).init(params)
    make(True).init(params)  # optax takes it for the whole tree


FORMER = {
    "refresh": ("composite", "rule=Whitening(), or rule=BinomialSeries()"),
    "one_momentum": (True, "rule=BinomialSeries(preconditions='momentum')"),
    "momentum_dtype": ("bfloat16", "accumulator_dtype=..."),
}


@pytest.mark.parametrize("name", FORMER)
def test_a_former_argument_is_refused_with_what_replaced_it(name):
    value, instead = FORMER[name]
    message = saying(f"jorge has no argument {name} any more", instead)
    with pytest.raises(TypeError, match=message):
        jorge(0.1, **{name: value})


@pytest.mark.parametrize("as_function", [False, True])
def test_a_mask_of_another_tree_is_named(as_function):
    def make(mask):
        given = (lambda params: mask) if as_function else mask
        return jorge(0.1, weight_decay=0.1, weight_decay_mask=given)

    params = arrays(w=(3, 2), b=(2,))
    message = saying("weight_decay_mask must be", "Its tree differs from theirs")
    with pytest.raises(ValueError, match=message):
        make({"w": True}).init(params)
    make({"w": True, "b": False}).init(params)


def test_an_injected_mask_is_not_taken_for_a_schedule():
    """inject_hyperparams calls the mask with the step, which gives False."""
    params = arrays(w=(3, 2), b=(2,))
    options = {"weight_decay": 0.5, "weight_decay_mask": matrices}
    message = saying("weight_decay_mask must be", "static_args=('weight_decay_mask',)")
    with pytest.raises(TypeError, match=message):
        optax.inject_hyperparams(jorge)(0.1, **options).init(params)
    inject = optax.inject_hyperparams(jorge, static_args=("weight_decay_mask",))
    zeros = jax.tree.map(jnp.zeros_like, params)
    plain, injected = (
        tx.update(zeros, tx.init(params), params)[0]
        for tx in (jorge(0.1, **options), inject(0.1, **options))
    )
    chex.assert_trees_all_close(plain, injected)
    chex.assert_trees_all_close(plain, {"w": -0.05 * params["w"], "b": zeros["b"]})
    differs(plain, zeros)


@every_transformation
@pytest.mark.parametrize("root_dtype", ["float64", float])
def test_float64_roots_need_the_64_bit_mode(make, root_dtype):
    message = saying(
        "root_dtype='float64' needs jax's 64-bit mode", "jax_enable_x64", "'float32'"
    )
    with pytest.raises(ValueError, match=message):
        make(root_dtype=root_dtype)
    with pytest.raises(ValueError, match="accumulator_dtype='float64' needs jax's"):
        jorge(0.1, accumulator_dtype="float64")


@every_transformation
@pytest.mark.parametrize("root_dtype", ["nonsense", "float31", 3, object()])
def test_root_dtype_must_be_a_dtype(make, root_dtype):
    with pytest.raises(
        ValueError,
        match=saying(
            "root_dtype must name a floating-point dtype",
            f"got {root_dtype!r}",
            "Choose 'float32', 'bfloat16' or 'float64'",
        ),
    ):
        make(root_dtype=root_dtype)


@every_transformation
@pytest.mark.parametrize("root_dtype", ["float16", "float8_e5m2"])
def test_root_dtype_must_have_a_wide_range(make, root_dtype):
    with pytest.raises(
        ValueError,
        match=saying(
            "float32's range of exponents",
            f"got {root_dtype}",
            "Choose 'float32', 'bfloat16' or 'float64'",
        ),
    ):
        make(root_dtype=root_dtype)


@pytest.mark.parametrize("accumulator_dtype", ["nonsense", "float16", "int32", 3])
def test_accumulator_dtype_must_be_a_floating_dtype_of_wide_range(accumulator_dtype):
    with pytest.raises(
        ValueError, match=saying("accumulator_dtype must", "got", "Choose 'float32'")
    ):
        jorge(0.1, accumulator_dtype=accumulator_dtype)


@pytest.mark.parametrize("root_dtype", ["int32", "bool", "complex64", jnp.int8])
def test_root_dtype_must_be_real_and_floating(root_dtype):
    with pytest.raises(
        ValueError,
        match=saying("root_dtype must", "got", jnp.dtype(root_dtype).name, "Choose"),
    ):
        jorge(0.1, root_dtype=root_dtype)


@pytest.mark.parametrize("grafting", ["adam", "SGD", "", 3, 0.9, optax.sgd, ("sgd",)])
def test_grafting_must_be_known(grafting):
    with pytest.raises(
        ValueError,
        match=saying(
            "grafting must be 'sgd', a length such as jorge_optax.lengths.Adam(), an "
            "optax transformation of unit learning rate or "
            "None",
            f"got {grafting!r}",
        ),
    ):
        jorge(0.1, grafting=grafting)


@pytest.mark.parametrize(
    ("grafting", "remedy"),
    [
        ("adam", "write grafting=lengths.Adam()"),
        ("SGD", "write grafting=lengths.SGD()"),
        (lengths.Shape, "write grafting=lengths.Shape()"),
    ],
)
def test_what_grafting_was_meant_is_said(grafting, remedy):
    with pytest.raises(ValueError, match=saying("grafting must be", remedy)):
        jorge(0.1, grafting=grafting)


@every_transformation
@pytest.mark.parametrize("tiling", [256, "256", Tiling, (256, None), {}, 0])
def test_tiling_must_be_a_tiling(make, tiling):
    with pytest.raises(
        TypeError, match=saying("tiling must be a Tiling or None", f"got {tiling!r}")
    ):
        make(tiling=tiling)


@pytest.mark.parametrize("tiling", [256, Tiling, 0])
def test_tiling_of_graft_must_be_a_tiling(tiling):
    with pytest.raises(
        TypeError,
        match=saying("graft: tiling must be a Tiling or None", f"got {tiling!r}"),
    ):
        graft(optax.identity(), optax.identity(), tiling=tiling)


@pytest.mark.parametrize("max_dim", [True, False, 2.0, "256", None, (8, 8), NAN])
def test_tile_size_must_be_an_int(max_dim):
    with pytest.raises(
        TypeError,
        match=saying("Tiling.max_dim must be a Python int", f"got {max_dim!r}"),
    ):
        Tiling(max_dim=max_dim)


@pytest.mark.parametrize("max_dim", [0, -1])
def test_tile_size_must_be_positive(max_dim):
    with pytest.raises(
        ValueError, match=saying("Tiling.max_dim must be at least 1", f"got {max_dim}")
    ):
        Tiling(max_dim=max_dim)


def test_view_must_be_hashable():
    @dataclasses.dataclass
    class View:
        words: tuple[str, ...] = ()

        def __call__(self, path, shape):
            return default_view(shape)

    with pytest.raises(
        TypeError, match=saying("Tiling.view must be hashable", "a frozen dataclass")
    ):
        Tiling(view=View())
    assert Tiling(view=lambda path, shape: View()(path, shape)).max_dim == 256


@pytest.mark.parametrize("view", [None, 3, "rows", MatrixView((0,), (1,))])
def test_view_must_be_a_function(view):
    with pytest.raises(
        TypeError,
        match=saying(
            "Tiling.view must be a function of a path and a shape",
            "MatrixView or None",
            f"got {view!r}",
        ),
    ):
        Tiling(view=view)


@pytest.mark.parametrize("make", [jorge, scale_by_jorge, Tiling])
def test_unknown_options_are_refused(make):
    known: dict[str, Any] = {"learning_rate": 0.1} if make is jorge else {}
    with pytest.raises(
        TypeError, match=saying(make.__name__, "unexpected keyword argument", "block")
    ):
        make(**known, block_size=128)


def test_precision_must_be_known():
    message = saying("precision must be one that", "'nonsense'", "Choose 'highest'")
    with pytest.raises(ValueError, match=message):
        jorge(0.1, precision="nonsense")


def test_graft_takes_transformations_only():
    with pytest.raises(TypeError, match=saying("graft: magnitude must be", "0.9")):
        graft(0.9, optax.identity())  # pyright: ignore


# What the view answers.

SHAPE = (3, 2, 4)


ONE_AXIS_EACH = "must each name at least one axis in [-3, 3)"
TWICE = "names an axis twice"


@every_transformation
@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (MatrixView((0,), (3,)), ONE_AXIS_EACH),
        (MatrixView((0,), (-4,)), ONE_AXIS_EACH),
        (MatrixView((), (0,)), ONE_AXIS_EACH),
        (MatrixView((0,), ()), ONE_AXIS_EACH),
        (MatrixView((0, 1), (1,)), TWICE),
        (MatrixView((0, 0), (1,)), TWICE),
        (MatrixView((2,), (-1,)), TWICE),
    ],
    ids=str,
)
def test_a_view_must_fit_the_leaf(make, answer, rule):
    with pytest.raises(ValueError, match=about_the_view(answer, rule)):
        make(tiling=answering(answer)).init(LAYERS)


@pytest.mark.parametrize(
    "answer",
    [
        7,
        True,
        "rows",
        "ab",
        (0, 1, 2),
        {},
        MatrixView(0, 1),  # pyright: ignore
        MatrixView(("rows",), (1,)),  # pyright: ignore
        MatrixView(((0,),), (1,)),  # pyright: ignore
    ],
    ids=str,
)
def test_a_view_must_be_a_view(answer):
    with pytest.raises(ValueError, match=about_the_view(answer, "")):
        jorge(0.1, tiling=answering(answer)).init(LAYERS)


LAYERS = {"layers": [jnp.ones((3, 3)), {"kernel": jnp.ones(SHAPE)}]}


def answering(answer: Any) -> Tiling:
    """A tiling that answers so for the one kernel."""
    return Tiling(
        view=lambda path, shape: answer if "kernel" in path else default_view(shape)
    )


def about_the_view(answer: Any, rule: str) -> str:
    return saying(
        f"Tiling.view gave {answer!r} for the parameter 'layers/1/kernel' of shape "
        "(3, 2, 4)",
        rule,
        "Return a MatrixView that names existing axes once each, "
        "jorge_optax.default_view(shape), or None",
    )


@pytest.mark.parametrize("answer", [((0.5,), (1,)), ("0", "1")], ids=str)
def test_an_axis_of_a_view_must_be_an_integer(answer):
    with pytest.raises(ValueError, match=about_the_view(answer, "")):
        jorge(0.1, tiling=answering(answer)).init(LAYERS)


def test_what_a_bad_view_should_have_been_is_accepted():
    for answer in (MatrixView((0,), (-1,)), ((0,), (2,)), default_view(SHAPE), None):
        scale_by_jorge(tiling=answering(answer)).init(LAYERS)


# Good values pass.


def test_values_at_the_edge_of_the_allowed_pass():
    params = arrays(w=(3, 2))
    for options in (
        {"momentum": 0},
        {"momentum": 0.999},
        {"eps": 1e-30},
        {"eps": 1},
        {"update_interval": 1},
        {"update_interval": 3.0},
        {"update_interval": lambda count: 2.0},
        {"update_interval": growing_interval_schedule(50)},
        {"learning_rate": 0},
        {"learning_rate": lambda count: 0.1 / (1 + count)},
        {"learning_rate": jnp.float32(0.1)},
        {"weight_decay": 0.1, "weight_decay_mask": {"w": jnp.asarray(True)}},
        {"damping": 0},
        {"weight_decay": 0},
        {"root_dtype": "bfloat16"},
        {"root_dtype": jnp.float32},
        {"precision": None},
        {"precision": jax.lax.Precision.HIGH},
        {"tiling": Tiling(1)},
        {"grafting": optax.identity()},
    ):
        jorge(**{"learning_rate": 0.1, **options}).init(params)
