"""Trains the transformer with one optimizer, for several seeds."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from examples.language_model.configs import Config
from examples.language_model.input_pipeline import pieces, text
from examples.language_model.models import Transformer

Curve = list[tuple[int, float]]  # step, validation loss in nats a byte


class Trainer:
    """Compiles the training of one optimizer once, and runs it for any seed."""

    def __init__(self, config: Config, optimizer: optax.GradientTransformation):
        self.config = config
        training, validation = text()
        self._training = training
        rng = np.random.default_rng(1234)
        held_out = pieces(validation, rng, config.held_out, context=config.context)

        def loss(params: Any, tokens: jax.Array) -> jax.Array:
            logits = nnx.merge(self._graph, params)(tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(
                logits, tokens[:, 1:]
            ).mean()

        def run(params: Any, state: Any, batches: jax.Array) -> Any:
            def step(carry, tokens):
                params, state = carry
                grads = jax.grad(loss)(params, tokens)
                updates, state = optimizer.update(grads, state, params)
                return (optax.apply_updates(params, updates), state), None

            (params, state), _ = jax.lax.scan(step, (params, state), batches)
            return params, state, loss(params, held_out)

        self._init = jax.jit(optimizer.init)
        params = self._params(0)
        arguments = params, self._init(params), next(self._batches(0))
        run = jax.jit(run, donate_argnums=(0, 1))
        self._run = run.lower(*arguments).compile()

    def train(self, seed: int) -> Curve:
        """Returns the loss on the same held-out pieces, after each few steps."""
        params = self._params(seed)
        state = self._init(params)
        curve = []
        for batches in self._batches(seed):
            params, state, loss = self._run(params, state, batches)
            curve.append(((len(curve) + 1) * self.config.eval_every, float(loss)))
        return curve

    def _params(self, seed: int) -> Any:
        sizes = {
            name: getattr(self.config, name)
            for name in ("context", "width", "heads", "layers")
        }
        self._graph, params = nnx.split(Transformer(**sizes, rngs=nnx.Rngs(seed)))
        return params

    def _batches(self, seed: int) -> Iterator[np.ndarray]:
        config, rng = self.config, np.random.default_rng(seed)
        for _ in range(config.steps // config.eval_every):
            yield pieces(
                self._training,
                rng,
                config.eval_every,
                config.batch_size,
                context=config.context,
            )
