"""Trees of nnx, flax and equinox: paths, views, describe and diagnostics."""

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import nnx

from jorge_optax import (
    Tiling,
    default_view,
    describe,
    diagnostics,
    jorge,
    scale_by_jorge,
)
from tests.helpers.trees import differs, equal, paths_of


class Module(eqx.Module):
    weight: jax.Array
    layers: list[eqx.nn.Linear]
    name: str = eqx.field(static=True, default="module")


def test_paths_of_an_equinox_module():
    linear = eqx.nn.Linear(2, 3, key=jax.random.key(0))
    module = Module(jnp.zeros((2, 2)), [linear])
    assert paths_of(eqx.filter(module, eqx.is_array)) == [
        "weight",
        "layers/0/weight",
        "layers/0/bias",
    ]


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.embedding = nnx.Embed(6, 4, rngs=rngs)
        self.value = nnx.Linear(4, 5, rngs=rngs)

    def __call__(self, tokens):
        return self.value(self.embedding(tokens))


def test_paths_of_nnx_are_alike_in_init_and_update():
    model = Network(nnx.Rngs(0))
    in_init = jax.tree_util.tree_flatten_with_path(nnx.state(model, nnx.Param))[0]
    assert jax.tree_util.keystr(in_init[0][0]).endswith(".value")

    seen = []

    def view(path, shape):
        seen.append(path)
        return None if path.startswith("embedding") else default_view(shape)

    optimizer = nnx.Optimizer(
        model, scale_by_jorge(tiling=Tiling(view=view)), wrt=nnx.Param
    )
    before = nnx.to_pure_dict(nnx.state(model, nnx.Param))

    def loss(model):
        return jnp.sum(model(jnp.arange(6)) ** 2)

    optimizer.update(model, nnx.grad(loss)(model))
    after = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    # Called once a leaf: the plan of `update` is the plan of `init`.
    assert seen == ["embedding/embedding", "value/bias", "value/kernel"]
    differs(equal, before, after)


def test_describe_takes_nnx_flax_and_equinox_trees():
    model = nnx.Linear(6, 4, rngs=nnx.Rngs(0))
    expected = [("bias", "no: not a matrix"), ("kernel", "yes")]
    for tree in (
        nnx.state(model, nnx.Param),
        {"kernel": model.kernel[...], "bias": model.bias[...]},
    ):
        found = [(leaf.path, leaf.preconditioned) for leaf in describe(tree).leaves]
        assert sorted(found) == expected
    layer = eqx.filter(eqx.nn.Linear(6, 4, key=jax.random.key(0)), eqx.is_array)
    assert {leaf.path for leaf in describe(layer).leaves} == {"weight", "bias"}


def test_diagnostics_read_an_nnx_optimizer():
    model = nnx.Linear(8, 5, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, jorge(0.1, update_interval=1), wrt=nnx.Param)
    grads = nnx.grad(lambda m: jnp.sum(m(jnp.ones((2, 8))) ** 2))(model)
    optimizer.update(model, grads)
    report = diagnostics(optimizer.opt_state, nnx.state(model, nnx.Param), grads)
    assert report["kernel/left/norm"].shape == (1,)
    assert float(report["kernel/cosine"][0]) > 0
    assert not [key for key in report if not key.startswith("kernel/")]
