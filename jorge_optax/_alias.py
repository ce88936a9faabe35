"""jorge: the whole optimizer, spelled out as a chain."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import optax

from jorge_optax._checks import canonical_dtype, check_number, is_zero
from jorge_optax._grafting import along, graft_by, rescale_stacks, rescale_tiles
from jorge_optax._on_tiles import at_least_float32, on_tiles
from jorge_optax._rules import Composite, Series
from jorge_optax._tiling import Tiling
from jorge_optax._transform import scale_by_jorge, scale_stacks_by_jorge


def jorge(
    learning_rate: optax.ScalarOrSchedule,
    momentum: jax.typing.ArrayLike = 0.9,
    weight_decay: jax.typing.ArrayLike = 0.0,
    weight_decay_mask: Any | Callable[[optax.Params], Any] | None = None,
    *,
    eps: jax.typing.ArrayLike = 1e-6,
    update_interval: jax.typing.ArrayLike | optax.Schedule = 10,
    damping: jax.typing.ArrayLike = 0.0,
    refresh: Series | Composite | None = None,
    grafting: str | optax.GradientTransformation | None = "sgd",
    one_momentum: bool = False,
    tiling: Tiling | None = None,
    root_dtype: str = "float32",
    momentum_dtype: str | None = None,
    precision: Any = "highest",
) -> optax.GradientTransformationExtraArgs:
    r"""Jorge: Shampoo's preconditioning without a matrix inverse.

    Shampoo multiplies each gradient matrix from both sides by inverse fourth roots of
    its statistics, and computing these roots is what makes it slow. Jorge never
    computes them: it keeps approximate roots and refreshes them by a few matrix
    products, every ``update_interval`` steps. Each step has the direction that the
    roots give and the length that SGD's step would have (grafting), so the learning
    rate of a tuned SGD run carries over. With exact roots this would be Shampoo with
    SGD grafting.

    For a gradient :math:`G_t` seen as a matrix, :math:`\hat L` (``roots.left``) and
    :math:`\hat R` (``roots.right``), which start as :math:`\epsilon^{-1/4} I`,

    .. math::

      X_L &= \hat L_{t-1}^4 G_t G_t^\top, \qquad
      \beta_2 = \frac{\|X_L\|_F}{\|X_L\|_F + 1} \\
      \hat L_t &= \beta_2^{-1/4} \hat L_{t-1} \left(I - \frac{1-\beta_2}{4\beta_2} X_L
        + \frac{5 (1-\beta_2)^2}{32 \beta_2^2} X_L^2 \right) \\
      \tilde G_t &= \hat L_t G_t \hat R_t, \qquad
      m_t = \beta_1 m_{t-1} + (1 - \beta_1) \tilde G_t, \qquad
      s_t = \beta_1 s_{t-1} + G_t \\
      \theta_t &= \theta_{t-1}
        - \eta_t \left( \|s_t\|_F \frac{m_t}{\|m_t\|_F} + \lambda \theta_{t-1} \right)

    with :math:`\hat R` refreshed likewise from :math:`G_t^\top G_t`. Leaves without
    roots (biases, scalars) take the step of the grafted optimizer, here SGD's
    momentum step.

    Args:
      learning_rate: :math:`\eta`, a number or a schedule. Take that of a tuned SGD.
      momentum: :math:`\beta_1`, of both momenta. Take that of SGD.
      weight_decay: :math:`\lambda`, decoupled from the gradient as in AdamW. The
        paper's rule is SGD's decay divided by ``1 - momentum``.
      weight_decay_mask: which leaves decay, a tree or a function of the parameters,
        as in :func:`optax.add_decayed_weights`.
      eps: the statistics start as ``eps`` times the identity.
      update_interval: the roots are refreshed at steps 0, k, 2k, ...: a number, which
        may be traced, or a schedule of the step.
      damping: adds ``damping`` times the mean of its diagonal to the diagonal of each
        gram matrix. 0 is the paper's form.
      refresh: the rule by which roots are refreshed: :class:`Series`, the paper's, or
        :class:`Composite`, which is much nearer to Shampoo with exact roots; ``None``
        is ``Series()``.
      grafting: ``"sgd"``; or a transformation of unit learning rate, the length of
        whose steps is taken, such as ``optax.scale_by_adam()`` or ``optax.adam(1.0)``
        (the sign does not matter), and whose own step the leaves without roots take;
        or ``None`` for steps :math:`\eta m_t` (Algorithm 2 as it stands). Without
        grafting steps do not shrink with the gradient, so that the learning rate must.
      one_momentum: keeps SGD's momentum :math:`s_t` alone, and preconditions it:
        the direction is :math:`\hat L_t s_t \hat R_t`, the roots are refreshed from
        :math:`s_t`, and :math:`m_t` is not needed. Only with ``grafting="sgd"``.
      tiling: how leaves are seen as matrices and cut into tiles, each with its own
        roots and its own grafted norm; ``None`` is ``Tiling()``.
      root_dtype: dtype in which roots are kept, by name.
      momentum_dtype: dtype in which momenta are kept, by name; ``None`` is float32, or
        that of the parameters if it is wider.
      precision: of the matrix products, as in :func:`jax.numpy.matmul`; without
        ``"highest"``, float32 products run in TF32 on recent GPUs.

    Returns:
      An :class:`optax.GradientTransformationExtraArgs`.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import optax
      >>> from jorge_optax import jorge
      >>> target = jnp.array([[3.0, -2.0], [1.0, 4.0]])
      >>> loss = lambda params: jnp.sum((params["w"] - target) ** 2)
      >>> params = {"w": jnp.zeros((2, 2))}
      >>> optimizer = jorge(0.02, momentum=0.9)
      >>> state = optimizer.init(params)
      >>> for _ in range(200):
      ...   grads = jax.grad(loss)(params)
      ...   updates, state = optimizer.update(grads, state, params)
      ...   params = optax.apply_updates(params, updates)
      >>> bool(loss(params) < 0.001)
      True

    References:
      Singh et al, `Jorge: Approximate Preconditioning for GPU-efficient Second-order
      Optimization <https://arxiv.org/abs/2310.12298>`_, 2023

      Gupta et al, `Shampoo: Preconditioned Stochastic Tensor Optimization
      <https://arxiv.org/abs/1802.09568>`_, 2018

    .. note::
      Under :func:`jax.vmap` over whole training states the refresh becomes a select,
      and is paid at every step. :func:`optax.MultiSteps` runs the update, and any
      refresh that is due, at every mini-step; accumulate gradients in a
      :func:`jax.lax.scan` where that matters.

    .. seealso:: :func:`jorge_optax.scale_by_jorge`, :func:`jorge_optax.graft`
    """
    check_number(
        "momentum",
        momentum,
        "must lie in [0, 1)",
        lambda x: 0 <= x < 1,
        "SGD's 0.9 is usual.",
    )
    check_number(
        "weight_decay",
        weight_decay,
        "must be finite and at least 0",
        lambda x: 0 <= x < math.inf,
    )

    options: dict[str, Any] = dict(
        eps=eps,
        update_interval=update_interval,
        damping=damping,
        refresh=refresh,
        root_dtype=root_dtype,
        precision=precision,
    )
    if momentum_dtype is not None:
        momentum_dtype = canonical_dtype("momentum_dtype", momentum_dtype)
    average = optax.ema(momentum, debias=False, accumulator_dtype=momentum_dtype)
    if one_momentum and not isinstance(grafting, str):
        raise ValueError(
            "one_momentum keeps the momentum of SGD, whose length grafting='sgd' "
            f"takes, but grafting is {grafting!r}. Leave one of the two out."
        )
    if grafting is None:
        step = optax.chain(scale_by_jorge(tiling=tiling, **options), average)
    elif isinstance(grafting, optax.GradientTransformation):
        direction = optax.chain(scale_by_jorge(tiling=tiling, **options), average)
        rule = functools.partial(rescale_tiles, tiling=tiling or Tiling(), others=along)
        step = graft_by(rule, grafting, direction)
    elif grafting == "sgd":
        # The same as the above with optax.trace(momentum), in fewer operations: both
        # momenta live on the stacks.
        sgd = optax.trace(momentum, accumulator_dtype=momentum_dtype)
        direction = scale_stacks_by_jorge(**options)
        if one_momentum:
            tiles = graft_by(rescale_stacks, optax.identity(), direction)
            tiles = optax.chain(sgd, tiles)
        else:
            tiles = graft_by(rescale_stacks, sgd, optax.chain(direction, average))
        step = on_tiles(tiles, sgd, tiling=tiling)
    else:
        raise ValueError(
            "grafting must be 'sgd', an optax transformation of unit learning rate or "
            f"None, got {grafting!r}."
        )
    return at_least_float32(
        optax.chain(
            step,
            _decay(weight_decay, weight_decay_mask),
            optax.scale_by_learning_rate(learning_rate),
        )
    )


def _decay(weight_decay: Any, mask: Any) -> optax.GradientTransformation:
    """Decoupled decay; asks for parameters only if there is any."""
    if is_zero(weight_decay):
        return optax.identity()
    inner = optax.add_decayed_weights(weight_decay, mask)

    def update_fn(updates, state, params=None):
        if params is None:
            raise ValueError(
                f"jorge with weight_decay={weight_decay} needs the parameters (unless "
                "it is the Python number 0): call update(grads, state, params)."
            )
        return inner.update(updates, state, params)

    return optax.GradientTransformation(inner.init, update_fn)
