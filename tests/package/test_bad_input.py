"""Bad trees get an error that names path, shape, rule and remedy; nothing is lost."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import Tiling, Whitening, jorge, lengths, scale_by_jorge
from tests.helpers.errors import TRANSFORMATIONS, every_transformation, saying
from tests.helpers.trees import arrays, close, differs, equal, one_update

OUT = "optax.masked or optax.partition"
FLOATING = ("floating-point parameters only", OUT, "nnx.state(model, nnx.Param)")
NARROW = ("of 16 bits or more", "Keep the parameter in bfloat16 or float32", OUT)
ARRAY = ("not an array", "of floating-point arrays. Make it an array", OUT)
COMPLEX = ("roots are real", "optax.contrib.split_real_and_imaginary")
TYPED = "The parameter 'layers/0/w' of shape (3, 2) has dtype "
LEAVES = {
    "int": (jnp.ones((3, 2), jnp.int32), TYPED + "int32", *FLOATING),
    "bool": (jnp.ones((3, 2), bool), TYPED + "bool", *FLOATING),
    "numpy int": (np.ones((3, 2), np.int8), TYPED + "int8", *FLOATING),
    "key": (jax.random.key(0), "of shape () has dtype key", *FLOATING),
    "float8": (jnp.ones((3, 2), "float8_e4m3fn"), TYPED + "float8_e4m3fn", *NARROW),
    "e5m2": (jnp.ones((3, 2), "float8_e5m2"), TYPED + "float8_e5m2", *NARROW),
    "complex": (jnp.ones((3, 2), "complex64"), TYPED + "complex64", *COMPLEX),
    "complex scalar": (jnp.ones((), "complex64"), "shape () has dtype c", *COMPLEX),
    "number": (3.0, "The parameter 'layers/0/w' is 3.0", *ARRAY),
    "text": ("text", "The parameter 'layers/0/w' is 'text'", *ARRAY),
}


@every_transformation
@pytest.mark.parametrize("name", LEAVES)
def test_leaves_that_cannot_be_trained(make, name):
    leaf, *words = LEAVES[name]
    bad = {"layers": [{"w": leaf, "b": jnp.ones(2)}]}
    with pytest.raises(TypeError, match=saying(*words)):
        make().init(bad)
    good = {"layers": [{"w": jnp.ones((3, 2)), "b": jnp.ones(2)}]}
    state = jax.eval_shape(make().init, good)
    with pytest.raises(TypeError, match=saying(*words)):
        make().update(bad, state)


def test_the_wrapper_for_complex_leaves_does_help():
    parts = arrays(real=(3, 4), imaginary=(3, 4), b=(2,))
    whole = {"w": parts["real"] + 1j * parts["imaginary"], "b": parts["b"]}
    optimizer = jorge(0.1, weight_decay=0.1)
    updates = one_update(optax.contrib.split_real_and_imaginary(optimizer), whole)
    by_parts = one_update(optimizer, parts)
    assert updates["w"].dtype == jnp.complex64
    expected = by_parts["real"] + 1j * by_parts["imaginary"]
    close(updates, {"w": expected, "b": by_parts["b"]})
    differs(close, updates["w"], expected.conj())


def test_float64_leaves_of_numpy_are_taken_as_by_optax():
    # pyproject turns warnings into errors: optax.sgd gives none.
    params = {"w": np.ones((3, 2)), "b": np.ones(2)}
    for optimizer in (optax.sgd(0.1, 0.9), jorge(0.1)):
        updates, _ = optimizer.update(params, optimizer.init(params), params)
        assert updates["w"].dtype == jnp.zeros((), float).dtype


# Gradients that do not fit the state or the parameters, and states that fit neither.

SHAPES: dict[str, Any] = {"w": (6, 4), "v": (6, 4), "b": (2,)}
UNFIT = "The gradients do not fit the optimizer's state"
AGAIN = (
    "Pass gradients of the same tree and shapes as the parameters given to init",
    "restore a state only under the Tiling, the rule and the grafting it was made with",
    "call init again",
)
STACKS = (UNFIT, "the state has", "at roots/", "the gradients need an array", "for ")
MANY = {**SHAPES, **{f"m{i}": (3, 5) for i in range(9)}}
# Shapes of the gradients, words of the message.
GRADIENTS = {
    "one matrix less": ({"w": (6, 4), "b": (2,)}, *STACKS, "'w' of shape (6, 4)"),
    "one matrix more": ({**SHAPES, "u": (3, 5)}, *STACKS, "'u' of shape (3, 5)"),
    "many more": (MANY, *STACKS, "'m2' of shape (3, 5). "),
    "a bias that is a matrix": ({**SHAPES, "b": (2, 2)}, "'b' of shape (2, 2)"),
    "another shape": ({**SHAPES, "w": (6, 5)}, *STACKS, "'w' of shape (6, 5)"),
    "no matrix": ({"b": (2,)}, UNFIT),
    "None": ({**SHAPES, "v": None}, UNFIT, "The gradients have None at 'v'"),
}
BIASES = {
    "no bias": ({**SHAPES, "b": None}, UNFIT, "/b, the", "have None at 'b'"),
    "none": ({"w": (6, 4), "v": (6, 4)}, UNFIT, "/b, the gradients need nothing"),
    "other": ({**SHAPES, "b": (3,)}, UNFIT, "the state has an", "'b' of shape (3,)"),
    "that broadcasts": ({**SHAPES, "b": (1,)}, UNFIT, "'b' of shape (1,)"),
    "more": ({**SHAPES, "c": (2,)}, UNFIT, "nothing at others", "'c' of shape (2,)"),
}


def of_shapes(shapes: dict[str, Any]) -> dict[str, Any]:
    return {k: None if s is None else jnp.ones(s) for k, s in shapes.items()}


# scale_by_jorge keeps no state for parameters without roots.
KEEP_BIASES = [name for name in TRANSFORMATIONS if name != "scale_by_jorge"]
UNFIT_CASES = [
    *((make, *row) for make in TRANSFORMATIONS for row in GRADIENTS.values()),
    *((make, *row) for make in KEEP_BIASES for row in BIASES.values()),
]


@pytest.mark.parametrize(
    ("make", "shapes", "words"), [(make, own, w) for make, own, *w in UNFIT_CASES]
)
def test_gradients_of_another_tree_do_not_fit(make, shapes, words):
    optimizer = TRANSFORMATIONS[make]()
    state = jax.eval_shape(optimizer.init, of_shapes(SHAPES))
    with pytest.raises(ValueError, match=saying(*words, *AGAIN)):
        jax.eval_shape(optimizer.update, of_shapes(shapes), state)


BESIDE_PARAMETERS = {
    "a matrix": ("w", (4, 6), "has shape (4, 6), but the parameter has shape (6, 4)"),
    "a bias": ("b", (3,), "has shape (3,), but the parameter has shape (2,)"),
    "a bias that broadcasts": ("b", (1,), "has shape (1,)"),
    "no matrix": ("w", None, "is None, but the parameter has shape (6, 4)"),
    "no bias": ("b", None, "is None, but the parameter has shape (2,)"),
}


@every_transformation
@pytest.mark.parametrize("name", BESIDE_PARAMETERS)
def test_a_gradient_has_the_shape_of_its_parameter(make, name):
    key, shape, found = BESIDE_PARAMETERS[name]
    params = {"layer": of_shapes(SHAPES)}
    gradients = {"layer": of_shapes({**SHAPES, key: shape})}
    state = jax.eval_shape(make().init, params)
    message = saying(
        f"The gradient of the parameter 'layer/{key}' {found}",
        "Pass gradients as jax.grad of the loss returns them",
        "zeros for a parameter that the loss does not use",
        OUT,
    )
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(make().update, gradients, state, params)
    jax.eval_shape(make().update, params, state, params)


BOTH = "for 'v' of shape (6, 4), 'w' of shape (6, 4)"
HAS, LACKS = (
    "the state has an array of shape (2, 6, 4) at ",
    "the state has nothing at ",
)
STATES = {
    "paper's rule": ({}, {"rule": Whitening()}, HAS + "average/6x4", BOTH),
    "whitening": ({"rule": Whitening()}, {}, LACKS + "average/6x4", BOTH),
    "Adam's length": ({"grafting": lengths.Adam()}, {}, LACKS + "others/", "for 'b'"),
    "SGD's length": ({}, {"grafting": lengths.Adam()}, LACKS + "length/6x4", BOTH),
    "no length": ({"grafting": None}, {}, LACKS + "trace/6x4", BOTH),
    "2 x 2": ({}, {"tiling": Tiling(2)}, LACKS + "roots/left/2x2", BOTH),
    "3 x 2": ({}, {"tiling": Tiling(3)}, LACKS + "roots/left/3x2", BOTH),
    "3 x 4": ({}, {"tiling": Tiling(5)}, LACKS + "roots/left/3x4", BOTH),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_of_another_rule_length_or_tiling_is_called_that(name):
    before, after, *words = STATES[name]
    params = of_shapes(SHAPES)
    state = jax.eval_shape(jorge(0.1, **before).init, params)
    optimizer = jorge(0.1, **after)
    with pytest.raises(ValueError, match=saying(UNFIT, *words, *AGAIN)):
        jax.eval_shape(optimizer.update, params, state, params)
    own = jax.eval_shape(optimizer.init, params)
    jax.eval_shape(optimizer.update, params, own, params)


@pytest.mark.parametrize("field", ["roots", "count"])
@pytest.mark.parametrize("rule", [None, Whitening()])
def test_a_state_of_another_dtype_does_not_fit(rule, field):
    params = arrays(**SHAPES)
    optimizer = scale_by_jorge(rule=rule)
    state = jax.eval_shape(optimizer.init, params)
    old = getattr(state, field)
    narrow = jax.tree.map(lambda x: x.update(dtype=jnp.dtype("bfloat16")), old)
    message = saying(
        f"The optimizer's state has dtype bfloat16 at {field}",
        f"but the optimizer keeps {jax.tree.leaves(old)[0].dtype} there",
        "Restore a state with the dtype of roots that it was made with",
        "call init again",
    )
    cast = state._replace(**{field: narrow})
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(optimizer.update, params, cast, params)
    jax.eval_shape(optimizer.update, params, state, params)


def test_the_state_of_another_optimizer_does_not_fit():
    params = arrays(**SHAPES)
    for other in (optax.scale_by_adam(), optax.trace(0.9), optax.identity()):
        with pytest.raises(ValueError, match=saying(UNFIT, *AGAIN)):
            scale_by_jorge().update(params, other.init(params))


@pytest.mark.parametrize("grafting", ["sgd", lengths.Adam(), None])
def test_decay_needs_parameters_and_no_decay_needs_none(grafting):
    params = arrays(**SHAPES)
    message = saying(
        "jorge with weight_decay=0.01 needs the parameters",
        "call update(grads, state, params)",
    )
    for decay in (0.01, 0.0):
        optimizer = jorge(0.1, weight_decay=decay, grafting=grafting)
        state = jax.eval_shape(optimizer.init, params)
        if decay:
            with pytest.raises(ValueError, match=message):
                jax.eval_shape(optimizer.update, params, state)
        else:
            jax.eval_shape(optimizer.update, params, state)


@every_transformation
def test_parameters_that_are_none_need_no_gradient(make):
    """As in an Equinox module that is filtered to its arrays."""
    params = {**arrays(w=(6, 4), b=(2,)), "activation": None}
    updates = jax.eval_shape(make().update, params, make().init(params), params)[0]
    assert updates["activation"] is None


def test_after_an_error_nothing_is_lost_not_even_a_donated_state():
    params = arrays(w=(6, 4), b=(2,))
    optimizer = jorge(0.1, weight_decay=0.1)
    update = jax.jit(optimizer.update, donate_argnums=1)
    state = optimizer.init(params)
    copy = jax.tree.map(jnp.array, state)
    for bad, error in (
        ((arrays(w=(6, 5), b=(2,)), state, params), "but the parameter has shape"),
        (({**params, "b": jnp.ones(2, "int32")}, state, params), "has dtype int32"),
        (({**params, "b": jnp.ones(2, "complex64")}, state, params), "dtype complex64"),
        ((params, state), "needs the parameters"),
    ):
        for run in (update, optimizer.update):
            with pytest.raises((ValueError, TypeError), match=error):
                run(*bad)
    equal(state, copy)
    updates, new_state = update(params, state, params)
    chex.assert_tree_all_finite(updates)
    differs(equal, new_state, copy)
