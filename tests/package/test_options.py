"""Bad options and views get an error that names rule and remedy; good ones pass."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
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

NAN, INF = float("nan"), float("inf")


# Options, at construction.

RATES: dict[str, tuple[Any, type[Exception], tuple[str, ...]]] = {
    "None": (None, TypeError, ("must be a number or a schedule", "got None")),
    "string": ("0.1", TypeError, ("must be a number or a schedule", "got '0.1'")),
    "negative": (-0.1, ValueError, ("at least 0", "got -0.1", "jorge subtracts")),
    "nan": (NAN, ValueError, ("must be finite", "got nan")),
    "infinite": (INF, ValueError, ("must be finite", "got inf")),
    "bool": (True, TypeError, ("must be a number or a schedule", "got True")),
    "transformation": (
        optax.sgd(0.1),
        TypeError,
        ("got an optax transformation", "Pass the arguments that it was made with"),
    ),
    "factory": (optax.sgd, TypeError, ("a function of the step", "one number")),
    "list": ([0.1], TypeError, ("must be a number or a schedule", "got [0.1]")),
    "negative schedule": (
        optax.constant_schedule(-0.1),
        ValueError,
        ("at least 0", "got -0.1 at step 0 of its schedule"),
    ),
    "schedule of vectors": (
        lambda step: jnp.ones(3),
        TypeError,
        ("a function of the step", "one number", "(3,)"),
    ),
    "mask": (
        lambda path, shape: 0.1,
        TypeError,
        ("a function of the step", "calling it with step 0 failed"),
    ),
}


@pytest.mark.parametrize("name", RATES)
def test_learning_rate_must_be_a_number_or_a_schedule(name):
    rate, error, parts = RATES[name]
    with pytest.raises(error, match=saying("learning_rate", *parts)):
        jorge(rate)


INTERVALS = {
    "learning rate": (optax.cosine_decay_schedule(0.1, 90), "got 0.1 at step 0"),
    "warm-up": (optax.linear_schedule(0.0, 0.1, 90), "got 0 at step 0"),
    "zero": (lambda step: 0, "got 0 at step 0"),
    "zero later": (optax.linear_schedule(10, 0, 900), "got 0 at step 1000"),
    "nan": (lambda step: NAN, "got nan at step 0"),
}


@every_transformation
@pytest.mark.parametrize("name", INTERVALS)
def test_a_schedule_of_intervals_must_be_one(make, name):
    schedule, found = INTERVALS[name]
    message = saying(
        "update_interval must be at least 1 at every step",
        found,
        "is not a learning-rate schedule",
        "growing_interval_schedule(50)",
    )
    with pytest.raises(ValueError, match=message):
        make(update_interval=schedule)


@pytest.mark.parametrize("option", ["momentum", "weight_decay", "eps", "damping"])
def test_options_without_schedules_name_the_way_to_schedule_them(option):
    schedule = optax.linear_schedule(0.5, 0.9, 10)
    message = saying(
        f"{option} must be a number, got a function",
        f"optax.inject_hyperparams(jorge)(..., {option}=schedule)",
    )
    with pytest.raises(TypeError, match=message):
        jorge(0.1, **{option: schedule})
    optax.inject_hyperparams(jorge)(0.1, **{option: schedule}).init(arrays(w=(3, 2)))


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
@pytest.mark.parametrize("eps", [0, 0.0, -1e-6, NAN, INF, -INF, True])
def test_eps_must_be_positive_and_finite(make, eps):
    with pytest.raises(
        ValueError,
        match=saying("eps must be positive and finite", f"got {eps}", "1e-6"),
    ):
        make(eps=eps)


@every_transformation
@pytest.mark.parametrize(
    ("eps", "root_dtype"), [(1e-300, "float32"), (1e40, "bfloat16")]
)
def test_eps_must_fit_the_dtype_of_the_roots(make, eps, root_dtype):
    message = saying(
        f"eps must be a normal number of root_dtype {root_dtype}",
        f"got {eps}",
        "Every root starts as eps**(-1/4)",
    )
    with pytest.raises(ValueError, match=message):
        make(eps=eps, root_dtype=root_dtype)


@pytest.mark.usefixtures("x64")
def test_eps_may_be_smaller_in_float64():
    optimizer = scale_by_jorge(eps=1e-300, root_dtype="float64")
    roots = optimizer.init({"w": jnp.zeros((2, 2))}).roots["2x2"]
    assert abs(float(roots.left[0, 0, 0]) / 1e75 - 1) < 1e-12


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
@pytest.mark.parametrize("damping", [-1e-6, NAN, INF, 1e38, True])
def test_damping_must_be_finite_and_not_negative(make, damping):
    with pytest.raises(
        ValueError,
        match=saying("damping must be finite and at least 0", f"got {damping}"),
    ):
        make(damping=damping)


@every_transformation
@pytest.mark.parametrize("interval", [0, -3, 2.5, 0.5, -INF, 2**40, 2**31, True])
def test_update_interval_must_be_a_positive_integer(make, interval):
    with pytest.raises(
        ValueError,
        match=saying(
            "update_interval must be an integer of at least 1 and below 2**31, or a "
            "schedule of the step",
            f"got {interval}",
            "pass 1 to refresh them at every step",
        ),
    ):
        make(update_interval=interval)


@pytest.mark.parametrize("interval", [NAN, INF])
def test_update_interval_must_be_finite(interval):
    with pytest.raises(ValueError, match=saying("update_interval", f"got {interval}")):
        jorge(0.1, update_interval=interval)


@pytest.mark.parametrize("momentum", [1, 1.0, 1.5, -0.1, NAN, INF, True])
def test_momentum_must_lie_between_zero_and_one(momentum):
    with pytest.raises(
        ValueError,
        match=saying("momentum must lie in [0, 1)", f"got {momentum}", "0.9 is usual"),
    ):
        jorge(0.1, momentum=momentum)


@pytest.mark.parametrize("weight_decay", [-1e-4, NAN, INF])
def test_weight_decay_must_not_be_negative(weight_decay):
    with pytest.raises(
        ValueError,
        match=saying(
            "weight_decay must be finite and at least 0", f"got {weight_decay}"
        ),
    ):
        jorge(0.1, weight_decay=weight_decay)


BY_INTEGER = {
    "learning_rate": lambda value: jorge(value),
    "weight_decay": lambda value: jorge(0.1, weight_decay=value),
    "SGD.scale": lambda value: jorge(0.1, grafting=lengths.SGD(scale=value)),
    "Adam.scale": lambda value: jorge(0.1, grafting=lengths.Adam(scale=value)),
    "Adam.eps": lambda value: jorge(0.1, grafting=lengths.Adam(eps=value)),
    "Shape.others": lambda value: jorge(0.1, grafting=lengths.Shape(others=value)),
}


@pytest.mark.parametrize("kind", [int, np.int64])
@pytest.mark.parametrize("option", BY_INTEGER)
def test_integers_that_int32_does_not_hold_are_numbers(option, kind):
    params = arrays(w=(3, 2), b=(3,))

    def step(value):
        optimizer = BY_INTEGER[option](value)
        return jax.jit(optimizer.update)(params, optimizer.init(params), params)[0]

    expected = step(2.0**32)
    chex.assert_trees_all_equal(step(kind(2**32)), expected)
    scale = max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(expected))
    differs(*(jax.tree.map(lambda x: x / scale, t) for t in (step(2.0**33), expected)))


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


@pytest.mark.parametrize("option", ["eps", "damping", "momentum", "weight_decay"])
@pytest.mark.parametrize("value", ["1e-6", None])
def test_options_that_are_no_numbers(option, value):
    with pytest.raises(TypeError, match=saying(f"{option} must be a number", "got")):
        jorge(0.1, **{option: value})


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


# Good values pass, traced ones included.


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


def test_schedules_over_traced_values_pass():
    def train(rate):
        optimizer = jorge(lambda count: rate / (1 + count), update_interval=interval)
        return optimizer.update(params, optimizer.init(params))[0]

    def interval(count):
        return jnp.where(count < 2, 1, 3)

    params = arrays(w=(3, 2))
    chex.assert_trees_all_close(jax.jit(train)(0.1), train(0.1))
    differs(jax.jit(train)(0.2), train(0.1))


def test_traced_values_pass():
    params = arrays(w=(4, 3), b=(2,))
    gradients = [arrays(w=(4, 3), b=(2,)), jax.tree.map(jnp.cos, params)]

    def train(numbers):
        optimizer = jorge(**numbers)
        state = optimizer.init(params)
        for gradient in gradients:
            updates, state = optimizer.update(gradient, state, params)
        return updates

    numbers = {
        "learning_rate": 0.1,
        "momentum": 0.8,
        "weight_decay": 0.01,
        "eps": 1e-3,
        "update_interval": 1,
        "damping": 1e-3,
    }
    traced = jax.jit(train)
    concrete = jax.jit(lambda: train(numbers))()
    chex.assert_trees_all_close(traced(numbers), concrete, rtol=1e-5)
    for name, other in {"eps": 1.0, "momentum": 0.5, "update_interval": 2}.items():
        differs(traced({**numbers, name: other}), concrete)
