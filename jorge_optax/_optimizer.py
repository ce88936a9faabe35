"""jorge: the whole optimizer."""

import functools

import optax
from jax.sharding import NamedSharding

from jorge_optax._checks import (
    as_float,
    check_booleans,
    check_learning_rate,
    check_mask,
    check_not_negative,
    is_zero,
)
from jorge_optax._distributed import Spread, spread_of
from jorge_optax._execution import execute_in_float32
from jorge_optax._grafting import along, graft_by, rescale_tiles
from jorge_optax._renamed import renamed
from jorge_optax._rule import Rule
from jorge_optax._tiles import on_tiles
from jorge_optax._tiling import Tiling
from jorge_optax._transform import (
    average_leaves,
    canonical_accumulator,
    precondition_stacks,
)
from jorge_optax._types import Mask, Precision, Scalar, ScalarOrSchedule
from jorge_optax.lengths import SGD, Length


@renamed(
    refresh="rule=Whitening(), or rule=BinomialSeries() for the paper's",
    one_momentum="rule=BinomialSeries(preconditions='momentum')",
    momentum_dtype="accumulator_dtype=...",
)
def jorge(
    learning_rate: optax.ScalarOrSchedule,
    momentum: Scalar = 0.9,
    weight_decay: Scalar = 0.0,
    weight_decay_mask: Mask = None,
    *,
    rule: Rule | None = None,
    eps: Scalar = 1e-6,
    update_interval: ScalarOrSchedule = 10,
    stagger: bool = False,
    damping: Scalar = 0.0,
    grafting: str | Length | optax.GradientTransformation | None = "sgd",
    tiling: Tiling | None = None,
    root_dtype: str = "float32",
    accumulator_dtype: str | None = None,
    precision: Precision = None,
    refresh_precision: Precision = None,
    sharding: NamedSharding | Spread | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Jorge: Shampoo's preconditioning without a matrix inverse.

    Shampoo multiplies each gradient matrix from both sides by inverse fourth roots of
    its statistics, and computing these roots is what makes it slow. Jorge never
    computes them: it keeps approximate roots and refreshes them by a few matrix
    products, every ``update_interval`` steps. Each step has the direction that the
    roots give and the length that SGD's step would have (grafting), so the learning
    rate of a tuned SGD run carries over. With exact roots this is Shampoo with SGD
    grafting.

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

    with :math:`\hat R` refreshed likewise from :math:`G_t^\top G_t`. Parameters without
    roots (biases, scalars) take the step of the grafted optimizer, here SGD's momentum
    step.

    Args:
      learning_rate: :math:`\eta`, a number or a schedule. With SGD's length (the
        default) the learning rate of a tuned SGD run fits.
      momentum: :math:`\beta_1`, the decay rate of both momenta.
      weight_decay: :math:`\lambda`, decoupled from the gradient as in AdamW. For a run
        tuned with L2 decay in SGD, divide that decay by ``1 - momentum``.
      weight_decay_mask: Which parameters decay, a tree or a function of the parameters,
        as in :func:`optax.add_decayed_weights`.
      rule: How the roots are refreshed and what they are applied to, a :class:`Rule`.
        ``None`` is :class:`BinomialSeries`, the paper's; :class:`Whitening` goes beyond
        the paper.
      eps: The statistics start as ``eps`` times the identity.
      update_interval: The roots are refreshed at steps 0, k, 2k, ...: a number k, which
        may be traced, or a schedule of the step.
      stagger: Whether each step refreshes a part of the tiles, in place of all tiles at
        every k-th step: a k-th of each stack, and each tile once in k steps. Steps then
        take about equally long, at the same cost on average. A stack of fewer than k
        tiles has steps without a refresh. If the interval is traced or a schedule, a
        tenth of each stack is refreshed at a time, and all of it at once while the
        interval is below 10.
      damping: Relative damping: adds ``damping * trace(gram) / m * I`` to each Gram
        matrix, m x m. The paper has none.
      grafting: What gives each step its length. ``"sgd"`` is SGD with the same
        momentum; :class:`jorge_optax.lengths.Adam` is Adam. Any transformation of unit
        learning rate works, whatever the sign of its steps (``optax.lion(1.0)``);
        parameters without roots take its own step. ``None`` is Algorithm 2 without
        grafting: its steps :math:`\eta m_t` do not shrink with the gradient, so the
        learning rate must decay.
      tiling: How parameters are seen as matrices and cut into tiles, each with its own
        roots and its own grafted norm; ``None`` is ``Tiling()``.
      root_dtype: Name of the dtype of the roots.
      accumulator_dtype: Name of the dtype of the momenta; ``None`` is float32, or the
        dtype of the parameters if that is wider.
      precision: Precision of the matrix products that apply the roots, at every step,
        as in :func:`jax.numpy.matmul`; without ``"highest"``, float32 products run in
        TF32 on recent GPUs. ``None`` is what suits the rule: ``"high"`` for
        :class:`Whitening`, ``"highest"`` for :class:`BinomialSeries`.
      refresh_precision: Precision of the matrix products that refresh the roots;
        ``None`` is that of ``precision``, or ``"highest"`` if that is ``None``, too.
      sharding: A :class:`jax.sharding.NamedSharding` whose mesh axes the tiles are
        spread over: each device keeps, refreshes and applies only its share. A
        :class:`Spread` says more; ``None`` does not spread them.

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
      Under :func:`jax.vmap` over whole training states the conditional becomes a
      select, and every step pays for a refresh. :func:`optax.MultiSteps` runs the
      update, and any refresh that is due, at every mini-step; accumulate gradients in a
      :func:`jax.lax.scan` where that matters.

    .. seealso:: :func:`jorge_optax.scale_by_jorge`, :func:`jorge_optax.graft`
    """
    check_learning_rate(learning_rate)
    check_not_negative("weight_decay", weight_decay)
    check_mask(weight_decay_mask)
    length = _length_of(grafting)
    spread = spread_of(sharding)
    tiles = precondition_stacks(
        rule=rule,
        momentum=momentum,
        eps=eps,
        update_interval=update_interval,
        stagger=stagger,
        damping=damping,
        root_dtype=root_dtype,
        accumulator_dtype=accumulator_dtype,
        precision=precision,
        refresh_precision=refresh_precision,
        length=length,
    )
    if length is not None:
        dtype = canonical_accumulator(accumulator_dtype)
        others = length.transformation(momentum, dtype)
    else:
        others = average_leaves(rule, momentum, accumulator_dtype)
    factor = getattr(length, "factor", None)
    step = on_tiles(tiles, others, tiling=tiling, factor=factor, spread=spread)
    if isinstance(grafting, optax.GradientTransformation):
        combine = functools.partial(
            rescale_tiles, tiling=tiling or Tiling(), others=along
        )
        step = graft_by(combine, grafting, step)
    return execute_in_float32(
        optax.chain(
            step,
            _decay(weight_decay, weight_decay_mask),
            optax.scale_by_learning_rate(as_float(learning_rate)),
        ),
        spread,
    )


def _length_of(
    grafting: str | Length | optax.GradientTransformation | None,
) -> Length | None:
    """Returns the length on stacks; None for None and for optax transformations."""
    if grafting is None or isinstance(grafting, optax.GradientTransformation):
        return None
    if isinstance(grafting, str) and grafting == "sgd":
        return SGD()
    if isinstance(grafting, Length) and not isinstance(grafting, type):
        return grafting
    known = {"adam": "Adam()", "sgd": "SGD()", "shape": "Shape()"}
    meant = known.get(str(getattr(grafting, "__name__", grafting)).lower())
    raise ValueError(
        "grafting must be 'sgd', a length such as jorge_optax.lengths.Adam(), an optax "
        f"transformation of unit learning rate or None, got {grafting!r}"
        + (f": write grafting=lengths.{meant}." if meant else ".")
    )


def _decay(weight_decay: Scalar, mask: Mask) -> optax.GradientTransformation:
    """Returns decoupled decay, which needs the parameters only if it is not 0."""
    if is_zero(weight_decay):
        return optax.identity()
    inner = optax.add_decayed_weights(as_float(weight_decay), mask)

    def init_fn(params):
        if callable(mask):
            check_booleans(mask(params), alone=True)
        try:
            return inner.init(params)
        except ValueError as error:
            raise ValueError(
                "weight_decay_mask must be a tree of booleans like the parameters, or "
                "a function of the parameters that returns one. Its tree differs from "
                f"theirs: {error}"
            ) from error

    def update_fn(updates, state, params=None):
        if params is None:
            raise ValueError(
                f"jorge with weight_decay={weight_decay} needs the parameters (unless "
                "it is the Python number 0): call update(grads, state, params)."
            )
        return inner.update(updates, state, params)

    return optax.GradientTransformation(init_fn, update_fn)
