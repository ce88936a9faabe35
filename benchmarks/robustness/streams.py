"""Gradient sequences on which the rules are tried.

Recorded ones are gradients of one tile of one layer, at consecutive steps of SGD with
momentum 0.9 on the training problems. They are recorded when first asked for and kept
in the folder ``recorded``; delete it to record again. The others are synthetic, each
with one property that is difficult for roots.
"""

import functools
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness import results
from benchmarks.problems import PROBLEMS

FOLDER = results.sized(pathlib.Path(__file__).parent, results.FOLDER) / "recorded"
STEPS = results.sized(300, 100)
Streams = dict[str, np.ndarray]  # by name: ``[steps, R, C]``, one for each refresh

# Model, step at which recording starts, and the tiles as the package would cut them
# with sides of at most 128. Rows of the first layer are pixels: rows 336 to 447 are
# four lines in the middle of the image, rows 0 to 111 the four at its upper border,
# many of which are never lit.
TILES: dict[str, tuple[str, int, str, slice, slice]] = {
    "MLP, layer 0": ("mlp", 0, "layer0/kernel", slice(336, 448), slice(128)),
    "MLP, layer 0, border": ("mlp", 0, "layer0/kernel", slice(112), slice(128)),
    "MLP, layer 1": ("mlp", 0, "layer1/kernel", slice(128), slice(128)),
    "MLP late, layer 0": ("mlp", 1000, "layer0/kernel", slice(336, 448), slice(128)),
    "MLP late, layer 1": ("mlp", 1000, "layer1/kernel", slice(128), slice(128)),
    "autoencoder, layer 0": (
        "autoencoder",
        0,
        "layer0/kernel",
        slice(336, 448),
        slice(128),
    ),
    "autoencoder, layer 1": ("autoencoder", 0, "layer1/kernel", slice(128), slice(64)),
    "autoencoder, layer 3": ("autoencoder", 0, "layer3/kernel", slice(16), slice(64)),
    "ResNet, block 1": ("resnet", 0, "block1/conv1", slice(72), slice(16)),
    "ResNet, block 2": ("resnet", 0, "block2/conv2", slice(96), slice(32)),
    "transformer, queries": ("transformer", 0, "blocks/0/qkv", slice(128), slice(128)),
    "transformer, MLP": ("transformer", 0, "blocks/1/up", slice(128), slice(128)),
}

if results.SMOKE:
    TILES = {"transformer, MLP": TILES["transformer, MLP"]}  # needs no data set


def recorded() -> Streams:
    """All recorded streams."""
    streams = {}
    for name, (model, start, *_) in TILES.items():
        path = FOLDER / f"{name}.npy"
        if not path.exists():
            _record(model, start)
        streams[name] = np.load(path, allow_pickle=False)
    return streams


def gradients_of(problem: Any, start: int, steps: int, tiles: dict) -> dict:
    """Gradients of tiles at consecutive steps of SGD.

    Args:
      problem: a training problem.
      start: the first step recorded.
      steps: how many are recorded.
      tiles: from a name to the leaf's path, rows and columns.

    Returns:
      From a name to ``[steps, R, C]``.
    """
    optimizer = optax.sgd(problem.central_rate, momentum=0.9)

    def cut(grads):
        leaves = jax.tree_util.tree_flatten_with_path(grads)[0]
        by_path = {
            jax.tree_util.keystr(path, simple=True, separator="/"): leaf
            for path, leaf in leaves
        }
        return {
            name: by_path[path].reshape(-1, by_path[path].shape[-1])[rows, columns]
            for name, (path, rows, columns) in tiles.items()
        }

    @jax.jit
    def step(params, model, state, batch):
        grads, model = jax.grad(problem.loss, has_aux=True)(params, model, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), model, state, cut(grads)

    params, model = problem.init(0)
    state = optimizer.init(params)
    kept = {name: [] for name in tiles}
    runs = (problem.batches(seed) for seed in itertools.count())
    batches = itertools.chain.from_iterable(runs)
    for batch in itertools.islice(batches, start + steps):
        params, model, state, cuts = step(params, model, state, batch)
        for name, tile in cuts.items():
            kept[name].append(tile)
    return {name: np.stack(kept[name][start:]).astype(np.float32) for name in tiles}


def _record(model: str, start: int) -> None:
    tiles = {
        name: tuple(where)
        for name, (other, when, *where) in TILES.items()
        if (other, when) == (model, start)
    }
    FOLDER.mkdir(exist_ok=True)
    for name, array in gradients_of(PROBLEMS[model](), start, STEPS, tiles).items():
        np.save(FOLDER / f"{name}.npy", array)


def quadratics(tile: tuple[int, int] = (64, 64), steps: int = STEPS) -> Streams:
    """Gradients ``A (W - W*) B`` of a quadratic, W scattered about its optimum."""
    streams = {}
    for condition in (1e1, 1e2, 1e3):
        rng = np.random.default_rng(0)
        factors = []
        for side in tile:
            basis = np.linalg.qr(rng.normal(size=(side, side)))[0]
            values = np.geomspace(1, 1 / condition, side)
            factors.append((basis * values) @ basis.T)
        errors = rng.normal(size=(steps, *tile))
        gradients = (factors[0] @ errors @ factors[1]).astype(np.float32)
        name = f"quadratic, condition {condition:.0e}".replace("e+0", "e")
        streams[name] = gradients
    return streams


# Synthetic streams: functions of the noise's key, the tile, the number t of refreshes
# before and the event, to one gradient.


def _noise(key: jax.Array, tile: tuple[int, int]) -> jax.Array:
    return jnp.asarray(_mixing(tile[0])) @ jax.random.normal(key, tile, jnp.float32)


@functools.cache
def _mixing(side: int) -> np.ndarray:
    """A matrix of condition 10, so that directions differ."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(side, side)))[0]
    return (basis * np.geomspace(1, 0.1, side)).astype(np.float32)


def _unit(side: int) -> np.ndarray:
    vector = np.random.default_rng(1).normal(size=side)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def _rank_one(key: jax.Array, tile: tuple[int, int]) -> jax.Array:
    left, right = jax.random.split(key)
    return jnp.outer(
        jax.random.normal(left, tile[:1], jnp.float32),
        jax.random.normal(right, tile[1:], jnp.float32),
    )


def _waking(key: jax.Array, tile: tuple[int, int], t: Any, event: int) -> jax.Array:
    noise, sleeper = _noise(key, tile), _unit(tile[0])
    return noise - jnp.where(t < event, 1, 0) * jnp.outer(sleeper, sleeper @ noise)


def _heavy(key: jax.Array, tile: tuple[int, int]) -> jax.Array:
    """Student's t with two degrees of freedom, which has no variance."""
    normal, exponential = jax.random.split(key)
    # Half a chi-squared number with two degrees of freedom is an exponential one. In
    # float32 one of 2^23 of those is 0, and would make the gradient infinite.
    half = jax.random.exponential(exponential, tile, jnp.float32)
    width = jnp.sqrt(jnp.maximum(half, 2.0**-24))
    heavy = jax.random.normal(normal, tile, jnp.float32) / width
    return jnp.asarray(_mixing(tile[0])) @ heavy


@functools.cache
def _bases(side: int) -> np.ndarray:
    """Two bases of three vectors each, ``[2, side, 3]``."""
    return np.random.default_rng(2).normal(size=(2, side, 3)).astype(np.float32)


def _low_rank(key: jax.Array, tile: tuple[int, int], which: Any) -> jax.Array:
    """Rank 3 within one of two bases, and noise of 0.001."""
    core, noise = jax.random.split(key)
    left, right = (jnp.asarray(_bases(side))[which] for side in tile)
    core = jax.random.normal(core, (3, 3), jnp.float32)
    return left @ core @ right.T + 1e-3 * jax.random.normal(noise, tile, jnp.float32)


@functools.cache
def _rotated(side: int) -> np.ndarray:
    """A symmetric matrix of condition 1e4 in a random basis."""
    basis = np.linalg.qr(np.random.default_rng(3).normal(size=(side, side)))[0]
    return ((basis * np.geomspace(1, 1e-4, side)) @ basis.T).astype(np.float32)


SYNTHETIC: dict[str, Callable[..., jax.Array]] = {
    "noise": lambda key, tile, t, event: _noise(key, tile),
    "rank 1, constant": lambda key, tile, t, event: jnp.outer(*map(_unit, tile)),
    "rank 1, turning": lambda key, tile, t, event: _rank_one(key, tile),
    "scale up by 1e3": lambda key, tile, t, event: (
        jnp.where(t < event, 1, 1e3) * _noise(key, tile)
    ),
    "scale down by 1e3": lambda key, tile, t, event: (
        jnp.where(t < event, 1, 1e-3) * _noise(key, tile)
    ),
    "waking direction": _waking,
    "heavy tails": lambda key, tile, t, event: _heavy(key, tile),
    "zero stretches": lambda key, tile, t, event: (
        jnp.where((t % 200 >= 100) & (t % 200 < 150), 0, 1) * _noise(key, tile)
    ),
    "one tiny gradient": lambda key, tile, t, event: (
        jnp.where(t % 1000 == event, 1e-4, 1) * _noise(key, tile)
    ),
}
# Streams on which an attack turned directions with roots in bfloat16.
HOSTILE: dict[str, Callable[..., jax.Array]] = {
    "rank 3 and noise": lambda key, tile, t, event: _low_rank(key, tile, 0),
    "rank 3, two bases in turn": lambda key, tile, t, event: _low_rank(
        key, tile, t % 2
    ),
    "two bases, 500 each": lambda key, tile, t, event: _low_rank(
        key, tile, t // 500 % 2
    ),
    "rotated, condition 1e4": lambda key, tile, t, event: (
        jnp.asarray(_rotated(tile[0]))
        @ jax.random.normal(key, tile, jnp.float32)
        @ jnp.asarray(_rotated(tile[1]))
    ),
}
EVENTS = {
    "scale up by 1e3": 150,
    "scale down by 1e3": 150,
    "waking direction": 1000,
    "one tiny gradient": 100,
}


def synthetic_gradient(
    name: str, tile: tuple[int, int], t: Any, event: int | None = None
) -> jax.Array:
    """The gradient of a synthetic stream after t refreshes, float32."""
    key = jax.random.fold_in(jax.random.key(0), t)
    event = EVENTS.get(name, 0) if event is None else event
    return {**SYNTHETIC, **HOSTILE}[name](key, tile, t, event).astype(jnp.float32)
