"""scale_by_jorge and jorge: the transformations, and how an update executes."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jax.sharding import NamedSharding

from jorge_optax._errors import (
    DECAY_RATE,
    NOT_NEGATIVE,
    check_gradients,
    check_interval,
    check_learning_rate,
    check_leave_out,
    check_mask,
    check_number,
    check_state,
    check_type,
)
from jorge_optax._paper import BinomialSeries
from jorge_optax._rule import Numerics, Rule, check_rule, numerics_of
from jorge_optax._sharding import Sharded, Spread, layout_of
from jorge_optax._step import (
    JorgeState,
    JorgeTransformation,
    Settings,
    start_tiles,
    step_tiles,
    then_decay_and_rate,
)
from jorge_optax._tiles import Plan, PyTree, Real, Stacks, Tiling
from jorge_optax.lengths import Length, length_of


def scale_by_jorge(
    *,
    rule: Rule | None = None,
    momentum: float | jax.Array | None = None,
    update_interval: optax.ScalarOrSchedule = 10,
    tiling: Tiling | None = None,
    numerics: Numerics | str | None = None,
    sharding: NamedSharding | Spread | Sharded | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Preconditions gradients by Jorge's approximate inverse roots.

    This gives the direction only: no grafting, weight decay or learning rate. See
    :func:`jorge_optax.jorge` for the whole optimizer, the mathematics and the
    arguments. Parameters without roots get the momentum alone.

    Args:
      rule: As in :func:`jorge_optax.jorge`.
      momentum: Decay rate of the momentum; ``None`` keeps none. Whether gradients are
        averaged before or after they are preconditioned is up to the rule.
      update_interval: As in :func:`jorge_optax.jorge`.
      tiling: As in :func:`jorge_optax.jorge`.
      numerics: As in :func:`jorge_optax.jorge`.
      sharding: As in :func:`jorge_optax.jorge`.

    Returns:
      An :class:`optax.GradientTransformationExtraArgs` with a :class:`JorgeState`.

    Examples:
      >>> import jax.numpy as jnp
      >>> import optax
      >>> from jorge_optax import scale_by_jorge
      >>> optimizer = optax.chain(
      ...   scale_by_jorge(update_interval=1), optax.scale_by_learning_rate(0.1)
      ... )
      >>> state = optimizer.init({"w": jnp.ones((3, 2))})
      >>> {key: root.unit.shape for key, root in state[0].roots.left.items()}
      {'3x2': (1, 3, 3)}
    """
    settings = checked_settings(
        rule=rule,
        momentum=momentum,
        grafting=None,
        update_interval=update_interval,
        tiling=tiling,
        numerics=numerics,
        sharding=sharding,
    )
    return executed(transform_tiles(settings, averages(settings)), settings)


def jorge(
    learning_rate: optax.ScalarOrSchedule,
    momentum: float | jax.Array = 0.9,
    weight_decay: float | jax.Array = 0.0,
    weight_decay_mask: Any = None,
    *,
    rule: Rule | None = None,
    grafting: str | Length | None = "sgd",
    update_interval: optax.ScalarOrSchedule = 10,
    tiling: Tiling | None = None,
    others: optax.GradientTransformation | None = None,
    numerics: Numerics | str | None = None,
    sharding: NamedSharding | Spread | Sharded | None = None,
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
      grafting: What gives each step its length. ``"sgd"`` is SGD with the same
        momentum; :class:`jorge_optax.lengths.Adam` is Adam. ``None`` is Algorithm 2
        without grafting: its steps :math:`\eta m_t` do not shrink with the gradient, so
        the learning rate must decay.
      update_interval: The roots are refreshed at steps 0, k, 2k, ...: a number k, which
        may be traced, or a schedule of the step.
      tiling: How parameters are seen as matrices and cut into tiles, each with its own
        roots and its own grafted norm; ``None`` is ``Tiling()``.
      others: A complete optimizer for parameters without roots and those left out, with
        a rate and a decay of its own; those of this function then concern parameters
        with roots only. ``None`` gives them the step of ``grafting``.
      numerics: In which dtypes state is kept and in which precision products are
        computed: a :class:`Numerics`, ``"exact"``, ``"reduced"``, or ``None`` for
        ``Numerics()``.
      sharding: A :class:`jax.sharding.NamedSharding` whose mesh axes the tiles are
        spread over: each device keeps, refreshes and applies only its share. A
        :class:`Spread` says more. :class:`Sharded` is for parameters that are divided
        themselves (FSDP, tensor parallelism).

    Returns:
      An :class:`optax.GradientTransformationExtraArgs`; printing it shows a table.

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
    check_number("momentum", momentum, DECAY_RATE)
    check_number("weight_decay", weight_decay, NOT_NEGATIVE)
    check_mask(weight_decay_mask)
    must = "a complete optax optimizer or None"
    check_type("others", others, optax.GradientTransformation | None, must)
    settings = checked_settings(
        learning_rate=learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
        weight_decay_mask=weight_decay_mask,
        rule=rule,
        grafting=grafting,
        update_interval=update_interval,
        tiling=tiling,
        others=others,
        numerics=numerics,
        sharding=sharding,
    )
    length = settings.length
    if others is None and length is None:
        others = averages(settings)
    elif others is None:
        others = length.transformation(momentum, settings.numerics.momenta)  # pyright: ignore
    step = transform_tiles(settings, others)  # pyright: ignore
    return executed(then_decay_and_rate(step, settings), settings)


def checked_settings(
    *,
    rule: Rule | None,
    momentum: float | jax.Array | None,
    grafting: str | Length | None,
    update_interval: optax.ScalarOrSchedule,
    tiling: Tiling | None,
    numerics: Numerics | str | None,
    sharding: NamedSharding | Spread | Sharded | None,
    **rest: Any,
) -> Settings:
    """Checks what :func:`jorge` and :func:`scale_by_jorge` share."""
    if momentum is not None:
        check_number("momentum", momentum, DECAY_RATE)
    check_interval(update_interval)
    check_type("tiling", tiling, Tiling | None, "a jorge_optax.Tiling or None")
    return Settings(
        rule=BinomialSeries() if rule is None else check_rule(rule),
        momentum=momentum,
        length=length_of(grafting),
        update_interval=update_interval,
        tiling=Tiling() if tiling is None else tiling,
        numerics=numerics_of(numerics),
        layout=layout_of(sharding),
        **rest,
    )


def averages(settings: Settings) -> optax.GradientTransformation:
    """Returns the momentum of parameters without roots, like that of the tiles."""
    momentum: Any = settings.momentum
    dtype = settings.numerics.momenta
    if momentum is None:
        return optax.identity()
    if settings.rule.momentum == "paper":
        return optax.ema(momentum, debias=False, accumulator_dtype=dtype)
    nesterov = optax.trace(momentum, nesterov=True, accumulator_dtype=dtype)
    return optax.chain(nesterov, optax.scale(1 - momentum))


class Memo:
    """Remembers the shapes of states by plan.

    Equal to any other, so that tools that compare functions by what they hold do not
    take two optimizers with the same options for different ones.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self.states: dict[Plan, JorgeState] = {}

    def __eq__(self, other: object) -> bool:
        """Returns whether the other one is a memo."""
        return isinstance(other, Memo)

    def __hash__(self) -> int:
        """Returns the same for all."""
        return hash(Memo)


def transform_tiles(
    settings: Settings, others: optax.GradientTransformation
) -> optax.GradientTransformationExtraArgs:
    """Steps the tiles of parameters with roots, and leaves the rest to ``others``."""
    layout, rest = settings.layout, optax.with_extra_args_support(others)
    memo = Memo()

    # Closures, not partials: tools that look into functions see the numbers then.
    def start(stacks: Stacks, real: dict[str, Real]) -> JorgeState:
        return start_tiles(settings, stacks, real)

    def start_state(plan: Plan, tree: PyTree) -> JorgeState:
        _, others, dtype = split(plan, tree)
        tiles = layout.init(start, plan, dtype) if plan.shapes else start({}, {})
        return tiles._replace(others=rest.init(others))

    def step_leaves(
        plan: Plan, leaves: list[PyTree], state: JorgeState
    ) -> tuple[list[PyTree], JorgeState]:
        step = functools.partial(step_tiles, settings)
        return layout.update(step, plan, leaves, state)

    def init_fn(params: PyTree) -> JorgeState:
        check_leave_out(params, settings.tiling.leave_out)
        plan = layout.plan(params, settings.tiling)
        state = start_state(plan, params)
        memo.states[plan] = jax.eval_shape(lambda: state)
        return state

    def update_fn(updates, state, params=None, **extra_args):
        check_gradients(updates, params)
        plan = layout.plan(updates, settings.tiling)
        if plan not in memo.states:
            make = functools.partial(start_state, plan)
            memo.states[plan] = jax.eval_shape(make, updates)
        check_state(memo.states[plan], state, plan, updates)
        tiles, tree, _ = split(plan, updates)
        new = state._replace(others=())
        if plan.shapes:
            # Jitted, so that an eager update compiles once, and not at every call.
            traced = any(isinstance(x, Tracer) for x in jax.tree.leaves((tiles, new)))
            run = step_leaves if traced else jax.jit(step_leaves, static_argnums=0)
            tiles, new = run(plan, tiles, new)
        if settings.length is not None:
            tiles = [
                None if leaf is None else settings.length.factor(*own.matrix) * leaf
                for own, leaf in zip(plan.leaves, tiles, strict=True)
            ]
        own_params = None if params is None else split(plan, params)[1]
        tree, own_state = rest.update(tree, state.others, own_params, **extra_args)
        remaining = iter(jax.tree.leaves(tree))
        merged = [next(remaining) if leaf is None else leaf for leaf in tiles]
        steps = jax.tree.structure(updates).unflatten(merged)
        return steps, new._replace(others=own_state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def split(plan: Plan, tree: PyTree) -> tuple[list[PyTree], PyTree, Any]:
    """Splits a tree: leaves with roots, else None; the tree without them; the dtype."""
    leaves, treedef = jax.tree.flatten(tree)
    pairs = list(zip(plan.leaves, leaves, strict=True))
    rest = (optax.MaskedNode() if own.grid else leaf for own, leaf in pairs)
    dtypes = [jax.dtypes.canonicalize_dtype(leaf.dtype) for leaf in leaves]
    tiles = [leaf if own.grid else None for own, leaf in pairs]
    return tiles, treedef.unflatten(rest), jnp.result_type(jnp.float32, *dtypes)


def executed(
    inner: optax.GradientTransformation, settings: Settings
) -> JorgeTransformation:
    """Runs a transformation in float32 at least, behind a barrier, on any mesh.

    Updates leave in the dtype of the gradients, and the state keeps its dtypes.
    """
    inner = optax.with_extra_args_support(inner)

    def init(params: optax.Params) -> optax.OptState:
        return settings.layout.place(inner.init(jax.tree.map(widen, params)))

    def update(updates, state, params=None, **extra_args):
        # Parameters are there from the start, and are added to once more.
        updates, state = wait_for_all((updates, state))

        def run(updates, state, params):
            updates, params = jax.tree.map(widen, (updates, params))
            return inner.update(updates, state, params, **extra_args)

        results = run_in_auto_axes(run, (updates, state), updates, state, params)
        # The state, too: wide gradients would widen the momenta of narrow parameters.
        return jax.tree.map(keep_dtype, results, (updates, state))

    vars(update)["settings"] = settings
    return JorgeTransformation(init, update)


def wait_for_all(tree: PyTree) -> PyTree:
    """Prevents XLA from interleaving the update with the backward pass.

    XLA would update a parameter as soon as its gradient is known, and so spread the
    update over as many CUDA graphs as there are convolutions. Behind this barrier the
    update is one CUDA graph.
    """
    leaves, treedef = jax.tree.flatten(tree)
    traced = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tracer)]
    if traced:
        barred = jax.lax.optimization_barrier([leaves[i] for i in traced])
        for i, leaf in zip(traced, barred, strict=True):
            leaves[i] = leaf
    return treedef.unflatten(leaves)


def run_in_auto_axes(
    function: Callable[..., PyTree], like: PyTree, *arguments: PyTree
) -> PyTree:
    """Calls a function under automatic sharding, also on a mesh with explicit axes.

    On explicit axes every reshape and matrix product must say how its result is
    sharded. A stack mixes tiles of differently sharded parameters, so that is left to
    the compiler. The results are sharded as the leaves of ``like``.
    """
    axis_types = jax.sharding.get_abstract_mesh().axis_types
    if jax.sharding.AxisType.Explicit not in axis_types:
        return function(*arguments)
    shardings = jax.tree.map(lambda x: jax.typeof(x).sharding, like)
    return jax.sharding.auto_axes(function, out_sharding=shardings)(*arguments)


def widen(leaf: PyTree) -> PyTree:
    """Casts a floating-point leaf of 16 bits to float32."""
    narrow = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
    if not narrow or jnp.dtype(leaf.dtype).itemsize != 2:
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.update(dtype=jnp.dtype("float32"))
    return leaf.astype(jnp.float32)


def keep_dtype(new: jax.Array, old: jax.Array) -> jax.Array:
    """Casts a new leaf to the dtype of the old one."""
    dtype = jax.dtypes.canonicalize_dtype(old.dtype)
    return new if new.dtype == dtype else new.astype(dtype)
