"""Bad trees get an error that names path, shape, rule and remedy; nothing is lost."""

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
    jorge,
    lengths,
    scale_by_jorge,
)
from tests.helpers.errors import (
    TRANSFORMATIONS,
    arrays,
    differs,
    every_transformation,
    saying,
)

# Leaves that Jorge cannot train.

BAD_LEAVES = {
    "int": (jnp.ones((3, 2), jnp.int32), "has dtype int32"),
    "bool": (jnp.ones((3, 2), bool), "has dtype bool"),
    "numpy int": (np.ones((3, 2), np.int8), "has dtype int8"),
    "key": (jax.random.key(0), "has dtype key"),
}


@every_transformation
@pytest.mark.parametrize("name", BAD_LEAVES)
def test_leaves_must_be_floating(make, name):
    leaf, found = BAD_LEAVES[name]
    message = saying(
        f"The parameter 'layers/0/w' of shape {leaf.shape}",
        found,
        "floating-point parameters only",
        "optax.masked or optax.partition",
        "of a flax.nnx module, pass nnx.state(model, nnx.Param)",
    )
    with pytest.raises(TypeError, match=message):
        make().init({"layers": [{"w": leaf}]})


@every_transformation
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_leaves_must_have_16_bits(make, dtype):
    message = saying(
        "The parameter 'w' of shape (3, 2) has dtype float8",
        "Jorge trains parameters of 16 bits or more",
        "Keep the parameter in bfloat16 or float32",
    )
    with pytest.raises(TypeError, match=message):
        make().init({"w": jnp.ones((3, 2), dtype)})
    params = {"w": jnp.ones((3, 2), jnp.bfloat16)}
    state = make().init(params)
    with pytest.raises(TypeError, match=message):
        jax.eval_shape(make().update, {"w": jnp.ones((3, 2), dtype)}, state, params)


@every_transformation
def test_gradients_must_be_floating(make):
    params = arrays(w=(3, 2), b=(2,))
    optimizer = make()
    state = optimizer.init(params)
    for key in params:
        gradients = {**params, key: jnp.ones(params[key].shape, jnp.int32)}
        message = saying(f"'{key}' of shape {params[key].shape}", "has dtype int32")
        with pytest.raises(TypeError, match=message):
            jax.eval_shape(optimizer.update, gradients, state, params)


@pytest.mark.parametrize("make", [TRANSFORMATIONS["sgd"], scale_by_jorge])
@pytest.mark.parametrize("leaf", [3.0, 3, "text", object()])
def test_leaves_must_be_arrays(make, leaf):
    message = saying(
        f"The parameter 'layers/0/w' is {leaf!r}, not an array",
        "pytrees of floating-point arrays",
        "Make it an array, or leave it out with optax.masked or optax.partition",
    )
    with pytest.raises(TypeError, match=message):
        make().init({"layers": [{"w": leaf, "b": jnp.ones(2)}]})


def test_what_is_left_out_need_not_be_floating():
    params = {**arrays(w=(3, 2), b=(2,)), "steps": jnp.ones((2, 2), jnp.int32)}
    floating = {"w": True, "b": True, "steps": False}
    labels = jax.tree.map(lambda keep: "jorge" if keep else "rest", floating)
    alone, _ = one_step(scale_by_jorge(), {key: params[key] for key in ("w", "b")})
    inner = scale_by_jorge()
    for optimizer in (
        optax.masked(inner, floating),
        optax.partition({"jorge": inner, "rest": optax.set_to_zero()}, labels),
    ):
        updates, _ = one_step(optimizer, params)
        del updates["steps"]
        chex.assert_trees_all_close(updates, alone)
        differs(updates, jax.tree.map(jnp.negative, alone))


def one_step(optimizer: Any, params: Any) -> Any:
    """One step by gradients that are the parameters."""
    return jax.jit(optimizer.update)(params, optimizer.init(params), params)


@every_transformation
@pytest.mark.parametrize("shape", [(3, 2), (2,), ()], ids=str)
def test_complex_leaves_are_sent_to_the_wrapper_that_helps(make, shape):
    params = {"spectral": {"w": jnp.ones(shape, jnp.complex64)}}
    message = saying(
        f"The parameter 'spectral/w' of shape {shape} has dtype complex64",
        "Jorge's roots are real",
        "optax.contrib.split_real_and_imaginary",
    )
    with pytest.raises(TypeError, match=message):
        make().init(params)


def test_the_wrapper_for_complex_leaves_does_help():
    parts = arrays(real=(3, 4), imaginary=(3, 4), b=(2,))
    whole = {"w": parts["real"] + 1j * parts["imaginary"], "b": parts["b"]}
    optimizer = jorge(0.1, weight_decay=0.1)
    wrapped = optax.contrib.split_real_and_imaginary(optimizer)
    updates, _ = one_step(wrapped, whole)
    by_parts, _ = one_step(optimizer, parts)
    assert updates["w"].dtype == jnp.complex64
    expected = by_parts["real"] + 1j * by_parts["imaginary"]
    chex.assert_trees_all_close(updates, {"w": expected, "b": by_parts["b"]})
    differs(updates["w"], expected.conj())


def test_float64_leaves_of_numpy_are_taken_as_by_optax():
    # pyproject turns warnings into errors: optax.sgd gives none.
    params = {"w": np.ones((3, 2)), "b": np.ones(2)}
    assert params["w"].dtype == np.float64
    for optimizer in (optax.sgd(0.1, 0.9), jorge(0.1)):
        updates, _ = optimizer.update(params, optimizer.init(params), params)
        assert updates["w"].dtype == jnp.zeros((), float).dtype


# Gradients that do not fit the state.

PARAMS = {"w": (6, 4), "v": (6, 4), "b": (2,)}
REMEDY = (
    "Pass gradients of the same tree and shapes as the parameters given to init",
    "restore a state only under the Tiling and the rule it was made with",
    "call init again",
)
OTHER_TREES = {
    "one matrix less": ({"w": (6, 4), "b": (2,)}, "'w' of shape (6, 4)"),
    "one matrix more": ({**PARAMS, "u": (3, 5)}, "'u' of shape (3, 5)"),
    "a bias that is a matrix": ({**PARAMS, "b": (2, 2)}, "'b' of shape (2, 2)"),
}
# State on stacks: its place is in the message.
ON_STACKS = {key: TRANSFORMATIONS[key] for key in ("sgd", "scale_by_jorge")}


@pytest.mark.parametrize("make", ON_STACKS.values(), ids=ON_STACKS.keys())
@pytest.mark.parametrize("name", OTHER_TREES)
def test_gradients_of_another_tree_do_not_fit(make, name):
    shapes, culprit = OTHER_TREES[name]
    optimizer = make()
    state = optimizer.init(arrays(**PARAMS))
    message = saying(
        "The gradients do not fit the optimizer's state: the state has",
        "the gradients need an array of shape",
        f"where the tiles of {culprit}",
        *REMEDY,
    )
    for update in (optimizer.update, jax.jit(optimizer.update)):
        with pytest.raises(ValueError, match=message):
            update(arrays(**shapes), state)


@pytest.mark.parametrize("make", ON_STACKS.values(), ids=ON_STACKS.keys())
def test_the_leaf_of_another_shape_is_the_one_named(make):
    optimizer = make()
    state = optimizer.init(arrays(**PARAMS))
    with pytest.raises(ValueError, match=saying("'w' of shape (6, 5)")):
        optimizer.update(arrays(**{**PARAMS, "w": (6, 5)}), state)


@pytest.mark.parametrize("make", ON_STACKS.values(), ids=ON_STACKS.keys())
def test_gradients_without_matrices_do_not_fit_a_state_with_roots(make):
    optimizer = make()
    state = optimizer.init(arrays(**PARAMS))
    message = saying("The gradients do not fit the optimizer's state", *REMEDY)
    with pytest.raises(ValueError, match=message):
        optimizer.update(arrays(b=(2,)), state)


@every_transformation
@pytest.mark.parametrize(("max_dim", "tile"), [(2, "2x2"), (3, "3x2"), (5, "3x4")])
def test_a_state_restored_under_another_tile_size_does_not_fit(make, max_dim, tile):
    params = arrays(**PARAMS)
    state = make().init(params)
    restored = jax.tree.map(jnp.asarray, jax.device_get(state))
    optimizer = make(tiling=Tiling(max_dim))
    message = saying(
        "The gradients do not fit the optimizer's state: the state has no tiles at",
        f"['{tile}']",
        "the gradients need an array of shape",
        "where the tiles of 'v' of shape (6, 4), 'w' of shape (6, 4) lie",
        *REMEDY,
    )
    with pytest.raises(ValueError, match=message):
        optimizer.update(params, restored, params)


def test_a_state_restored_under_a_tile_size_that_cuts_alike_fits():
    params = arrays(**PARAMS)
    state = jorge(0.1, tiling=Tiling(6)).init(params)
    one_tile, _ = jax.jit(jorge(0.1, tiling=Tiling(6)).update)(params, state)
    same, _ = jax.jit(jorge(0.1).update)(params, state)
    chex.assert_trees_all_close(one_tile, same)
    differs(one_tile, jax.tree.map(jnp.negative, same))


@pytest.mark.parametrize("make", ON_STACKS.values(), ids=ON_STACKS.keys())
@pytest.mark.parametrize("field", ["roots", "count"])
def test_a_state_of_another_dtype_does_not_fit(make, field):
    params = arrays(**PARAMS)
    optimizer = make(rule=Whitening())
    state = optimizer.init(params)
    old = optax.tree.get(state, field)
    narrow = jax.tree.map(lambda x: x.astype("bfloat16"), old)
    cast = optax.tree.set(state, **{field: narrow})
    message = saying(
        f"The optimizer's state has dtype bfloat16 at {field}",
        f"but the optimizer keeps {jax.tree.leaves(old)[0].dtype} there",
        "Restore a state with the root_dtype it was made with",
        "call init again",
    )
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(optimizer.update, params, cast, params)
    jax.eval_shape(optimizer.update, params, state, params)


def test_a_transposed_view_of_square_parameters_is_the_callers_to_keep():
    """Shapes cannot tell it, and docs/shapes.md says so."""

    def transposed(path, shape):
        del path, shape
        return MatrixView((1,), (0,))

    params = arrays(w=(5, 5))
    optimizer = jorge(0.1, update_interval=1)
    other = jorge(0.1, update_interval=1, tiling=Tiling(view=transposed))
    _, state = optimizer.update(params, optimizer.init(params))
    same, _ = optimizer.update(params, state)
    swapped, _ = other.update(params, state)
    chex.assert_tree_all_finite(swapped)
    differs(same, swapped)


def test_many_culprits_are_cut_short():
    shapes = {f"w{i}": (4, 4) for i in range(9)}
    optimizer = scale_by_jorge()
    state = optimizer.init(arrays(**dict(list(shapes.items())[:8])))
    with pytest.raises(ValueError, match="gradients do not fit") as caught:
        optimizer.update(arrays(**shapes), state)
    assert str(caught.value).count("of shape (4, 4)") == 3


def test_the_state_of_another_optimizer_does_not_fit():
    params = arrays(**PARAMS)
    optimizer = scale_by_jorge()
    message = saying("The gradients do not fit the optimizer's state", *REMEDY)
    for other in (optax.scale_by_adam(), optax.trace(0.9), optax.identity()):
        with pytest.raises(ValueError, match=message):
            optimizer.update(params, other.init(params))


OTHER_BIASES = {
    "none": ({}, "/b', the gradients have nothing there"),
    "other": ({"b": (3,)}, "for 'b' of shape (3,) the state has an array"),
    "that broadcasts": ({"b": (1,)}, "'b' of shape (1,)"),
    "more": ({"b": (2,), "c": (2,)}, "for 'c' of shape (2,) the state has nothing"),
}


@pytest.mark.parametrize("grafting", ["sgd", lengths.Adam(), None])
@pytest.mark.parametrize("name", OTHER_BIASES)
def test_other_leaves_without_roots_do_not_fit(grafting, name):
    biases, culprit = OTHER_BIASES[name]
    optimizer = jorge(0.1, grafting=grafting)
    state = optimizer.init(arrays(w=(6, 4), b=(2,)))
    message = saying("The gradients do not fit the optimizer's state", culprit, *REMEDY)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(optimizer.update, arrays(w=(6, 4), **biases), state)


BAD_GRADIENTS = {
    "a matrix": ("w", (4, 6), "has shape (4, 6), but the parameter has shape (6, 4)"),
    "a bias": ("b", (3,), "has shape (3,), but the parameter has shape (2,)"),
    "a bias that broadcasts": ("b", (1,), "has shape (1,)"),
    "no matrix": ("w", None, "is None, but the parameter has shape (6, 4)"),
    "no bias": ("b", None, "is None, but the parameter has shape (2,)"),
}


@every_transformation
@pytest.mark.parametrize("name", BAD_GRADIENTS)
def test_a_gradient_has_the_shape_of_its_parameter(make, name):
    key, shape, found = BAD_GRADIENTS[name]
    params = {"layer": arrays(w=(6, 4), b=(2,))}
    wrong = None if shape is None else jnp.ones(shape)
    gradients = {"layer": {**params["layer"], key: wrong}}
    optimizer = make()
    state = optimizer.init(params)
    message = saying(
        f"The gradient of the parameter 'layer/{key}' {found}",
        "Pass gradients as jax.grad of the loss returns them",
        "zeros for a parameter that the loss does not use",
        "optax.masked or optax.partition",
    )
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(optimizer.update, gradients, state, params)
    jax.eval_shape(optimizer.update, params, state, params)


@pytest.mark.parametrize("make", ON_STACKS.values(), ids=ON_STACKS.keys())
def test_without_parameters_a_gradient_of_none_is_named(make):
    params = arrays(w=(6, 4), v=(3, 2))
    optimizer = make()
    message = saying("The gradients do not fit", "The gradients have None at 'v'")
    with pytest.raises(ValueError, match=message):
        optimizer.update({**params, "v": None}, optimizer.init(params))


@every_transformation
def test_parameters_that_are_none_need_no_gradient(make):
    """As in an Equinox module that is filtered to its arrays."""
    params = {**arrays(w=(6, 4), b=(2,)), "activation": None}
    optimizer = make()
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert updates["activation"] is None


# States of another rule or length.

OTHER_STATES = {
    "paper's rule": ({}, {"rule": Whitening()}),
    "whitening": ({"rule": Whitening()}, {}),
    "series after the momentum": (
        {"rule": BinomialSeries(preconditions="nesterov")},
        {"rule": Whitening()},
    ),
    "Adam's length": ({"grafting": lengths.Adam()}, {}),
    "SGD's length": ({}, {"grafting": lengths.Adam()}),
    "no length": ({"grafting": None}, {}),
}


@pytest.mark.parametrize("name", OTHER_STATES)
def test_a_state_of_another_rule_or_length_is_called_that(name):
    before, after = OTHER_STATES[name]
    params = arrays(**PARAMS)
    state = jorge(0.1, **before).init(params)
    optimizer = jorge(0.1, **after)
    message = saying(
        "The optimizer's state was made with another rule or grafting",
        "Restore a state only with the rule and grafting it was made with",
        "call init again",
    )
    with pytest.raises(ValueError, match=message) as caught:
        jax.eval_shape(optimizer.update, params, state, params)
    assert "Tiling" not in str(caught.value)
    jax.eval_shape(optimizer.update, params, optimizer.init(params), params)


# Missing parameters.


@pytest.mark.parametrize("grafting", ["sgd", optax.scale_by_adam(), None])
def test_decay_needs_parameters(grafting):
    params = arrays(**PARAMS)
    optimizer = jorge(0.1, weight_decay=0.01, grafting=grafting)
    message = saying(
        "jorge with weight_decay=0.01 needs the parameters",
        "call update(grads, state, params)",
    )
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(optimizer.update, params, optimizer.init(params))


def test_without_decay_no_parameters_are_needed():
    params = arrays(w=(3, 2), b=(2,))
    optimizer = jorge(0.1, weight_decay=0.0)
    update = jax.jit(optimizer.update)
    without, _ = update(params, optimizer.init(params))
    given, _ = update(params, optimizer.init(params), params)
    chex.assert_trees_all_equal(without, given)
    differs(without, jax.tree.map(jnp.negative, given))


# Nothing is lost.


@every_transformation
def test_after_an_error_the_state_is_as_before(make):
    params = arrays(w=(6, 4), b=(2,))
    optimizer = make()
    update = jax.jit(optimizer.update)
    _, state = update(params, optimizer.init(params), params)
    before = jax.device_get(state)
    expected = update(params, state, params)
    for bad in (
        arrays(w=(5, 4), b=(2,)),
        {"w": params["w"], "b": jnp.ones(2, jnp.int32)},
        {"w": params["w"], "b": jnp.ones(2, jnp.complex64)},
    ):
        with pytest.raises((ValueError, TypeError), match="shape|dtype"):
            update(bad, state, params)
        with pytest.raises((ValueError, TypeError), match="shape|dtype"):
            optimizer.update(bad, state, params)
    chex.assert_trees_all_equal(jax.device_get(state), before)
    chex.assert_trees_all_equal(update(params, state, params), expected)
    differs(jax.device_get(expected[1]), before)


def test_an_error_does_not_consume_a_donated_state():
    params = arrays(w=(6, 4), b=(2,))
    optimizer = jorge(0.1, weight_decay=0.1)
    update = jax.jit(optimizer.update, donate_argnums=1)
    state = optimizer.init(params)
    with pytest.raises(ValueError, match="but the parameter has shape"):
        update(arrays(w=(6, 5), b=(2,)), state, params)
    with pytest.raises(ValueError, match="needs the parameters"):
        update(params, state)
    updates, new_state = update(params, state, params)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in updates.values())
    chex.assert_trees_all_equal_shapes_and_dtypes(new_state, optimizer.init(params))
