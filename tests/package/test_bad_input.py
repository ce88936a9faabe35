"""Bad trees get an error that names path, shape, rule and remedy; nothing is lost."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import Tiling, Whitening, jorge, lengths, scale_by_jorge
from tests.helpers.trees import arrays, differs, equal, saying

OUT = "optax.masked or optax.partition"
FLOATING = ("floating-point parameters only", OUT, "nnx.state(model, nnx.Param)")
NARROW = ("of 16 bits or more", "Keep the parameter in bfloat16 or float32", OUT)
ARRAY = ("not an array", "of floating-point arrays. Make it an array", OUT)
COMPLEX = ("roots are real", "optax.contrib.split_real_and_imaginary")
TYPED = "The parameter 'layers/0/w' of shape (3, 2) has dtype "
LEAVES = {
    "int": (jnp.ones((3, 2), jnp.int32), TYPED + "int32", *FLOATING),
    "numpy bool": (np.ones((3, 2), bool), TYPED + "bool", *FLOATING),
    "key": (jax.random.key(0), "of shape () has dtype key", *FLOATING),
    "float8": (jnp.ones((3, 2), "float8_e5m2"), TYPED + "float8_e5m2", *NARROW),
    "complex": (jnp.ones((3, 2), "complex64"), TYPED + "complex64", *COMPLEX),
    "number": (3.0, "The parameter 'layers/0/w' is 3.0", *ARRAY),
    "text": ("text", "The parameter 'layers/0/w' is 'text'", *ARRAY),
}
TRANSFORMATIONS = {
    "jorge": jorge(0.1),
    "adam": jorge(0.1, grafting=lengths.Adam(), rule=Whitening()),
    "scale_by_jorge": scale_by_jorge(),
}
every_transformation = pytest.mark.parametrize(
    "tx", TRANSFORMATIONS.values(), ids=TRANSFORMATIONS.keys()
)


@every_transformation
@pytest.mark.parametrize("name", LEAVES)
def test_leaves_that_cannot_be_trained(tx, name):
    leaf, *words = LEAVES[name]
    bad = {"layers": [{"w": leaf, "b": jnp.ones(2)}]}
    with pytest.raises(TypeError, match=saying(*words)):
        tx.init(bad)
    good = {"layers": [{"w": jnp.ones((3, 2)), "b": jnp.ones(2)}]}
    state = jax.eval_shape(tx.init, good)
    with pytest.raises(TypeError, match=saying(*words)):
        tx.update(bad, state)


def test_float64_leaves_of_numpy_are_taken_as_by_optax():
    params = {"w": np.ones((3, 2)), "b": np.ones(2)}
    # pyproject turns warnings into errors: optax.sgd gives none.
    updates, _ = jorge(0.1).update(params, jorge(0.1).init(params), params)
    assert updates["w"].dtype == jnp.zeros((), float).dtype


# Gradients that do not fit the state or the parameters, and states that fit neither.

SHAPES: dict[str, Any] = {"w": (6, 4), "v": (6, 4), "b": (2,)}
UNFIT = "The gradients do not fit the optimizer's state"
AGAIN = (
    "Pass gradients of the same tree and shapes as the parameters given to init",
    "restore a state only under the Tiling, the rule and the grafting it was made with",
    "call init again",
)
STACKS = ("the state has", "at roots/", "the gradients need an array", "for ")
# Shapes of the gradients, words of the message.
GRADIENTS = {
    "one matrix less": ({"w": (6, 4), "b": (2,)}, *STACKS, "'w' of shape (6, 4)"),
    "one matrix more": ({**SHAPES, "u": (3, 5)}, *STACKS, "'u' of shape (3, 5)"),
    "another shape": ({**SHAPES, "w": (6, 5)}, *STACKS, "'w' of shape (6, 5)"),
    "no matrix": ({"b": (2,)}, ""),
    "None": ({**SHAPES, "v": None}, "The gradients have None at 'v'"),
    "no bias": ({"w": (6, 4), "v": (6, 4)}, "/b, the gradients need nothing"),
    "another bias": ({**SHAPES, "b": (3,)}, "the state has an", "'b' of shape (3,)"),
    "a bias that broadcasts": ({**SHAPES, "b": (1,)}, "'b' of shape (1,)"),
    "one bias more": ({**SHAPES, "c": (2,)}, "nothing at others", "'c' of shape (2,)"),
}


def of_shapes(shapes: dict[str, Any]) -> dict[str, Any]:
    return {k: None if s is None else jnp.ones(s) for k, s in shapes.items()}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_another_tree_do_not_fit(name):
    shapes, *words = GRADIENTS[name]
    # scale_by_jorge keeps no state for parameters without roots.
    has_state = [tx for key, tx in TRANSFORMATIONS.items() if key != "scale_by_jorge"]
    for tx in has_state if "bias" in name else TRANSFORMATIONS.values():
        state = jax.eval_shape(tx.init, of_shapes(SHAPES))
        with pytest.raises(ValueError, match=saying(UNFIT, *words, *AGAIN)):
            jax.eval_shape(tx.update, of_shapes(shapes), state)


BESIDE_PARAMETERS = (
    ("w", (4, 6), "has shape (4, 6), but the parameter has shape (6, 4)"),
    ("b", (1,), "has shape (1,), but the parameter has shape (2,)"),
    ("w", None, "is None, but the parameter has shape (6, 4)"),
    ("b", None, "is None, but the parameter has shape (2,)"),
)


@every_transformation
@pytest.mark.parametrize(("key", "shape", "found"), BESIDE_PARAMETERS)
def test_a_gradient_has_the_shape_of_its_parameter(tx, key, shape, found):
    params = {"layer": of_shapes(SHAPES)}
    gradients = {"layer": of_shapes({**SHAPES, key: shape})}
    state = jax.eval_shape(tx.init, params)
    message = saying(
        f"The gradient of the parameter 'layer/{key}' {found}",
        "Pass gradients as jax.grad of the loss returns them",
        "zeros for a parameter that the loss does not use",
        OUT,
    )
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(tx.update, gradients, state, params)
    jax.eval_shape(tx.update, params, state, params)


BOTH = "for 'v' of shape (6, 4), 'w' of shape (6, 4)"
HAS = "the state has an array of shape (2, 6, 4) at "
LACKS = "the state has nothing at "
STATES = {
    "paper's rule": ({}, {"rule": Whitening()}, HAS + "average/6x4", BOTH),
    "whitening": ({"rule": Whitening()}, {}, LACKS + "average/6x4", BOTH),
    "Adam's length": ({"grafting": lengths.Adam()}, {}, LACKS + "others/", "for 'b'"),
    "SGD's length": ({}, {"grafting": lengths.Adam()}, LACKS + "length/6x4", BOTH),
    "no length": ({"grafting": None}, {}, LACKS + "trace/6x4", BOTH),
    "2 x 2": ({}, {"tiling": Tiling(2)}, LACKS + "roots/left/2x2", BOTH),
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
    with pytest.raises(ValueError, match=saying(UNFIT, *AGAIN)):
        scale_by_jorge().update(params, optax.trace(0.9).init(params))


@pytest.mark.parametrize("field", ["roots", "count"])
def test_a_state_of_another_dtype_does_not_fit(field):
    params, optimizer = arrays(**SHAPES), scale_by_jorge()
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


def test_parameters_that_are_none_need_no_gradient():
    """As in an Equinox module that is filtered to its arrays."""
    params = {**arrays(w=(6, 4), b=(2,)), "activation": None}
    for tx in TRANSFORMATIONS.values():
        updates = jax.eval_shape(tx.update, params, tx.init(params), params)[0]
        assert updates["activation"] is None


def test_after_an_error_nothing_is_lost_not_even_a_donated_state():
    params = arrays(w=(6, 4), b=(2,))
    optimizer = jorge(0.1, weight_decay=0.1)
    update = jax.jit(optimizer.update, donate_argnums=1)
    state = optimizer.init(params)
    copy = jax.tree.map(jnp.array, state)
    decay = saying("jorge with weight_decay=0.1 needs the parameters", "(grads, state,")
    for bad, error in (
        ((arrays(w=(6, 5), b=(2,)), state, params), "but the parameter has shape"),
        (({**params, "b": jnp.ones(2, "int32")}, state, params), "has dtype int32"),
        ((params, state), decay),
    ):
        for run in (update, optimizer.update):
            with pytest.raises((ValueError, TypeError), match=error):
                run(*bad)
    equal(state, copy)
    updates, new_state = update(params, state, params)
    chex.assert_tree_all_finite(updates)
    differs(equal, new_state, copy)
