"""scale_by_jorge: the paper's Algorithm 2 up to the preconditioned gradient."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jorge_optax._checks import canonical_dtype, check_number
from jorge_optax._on_tiles import at_least_float32, on_tiles
from jorge_optax._roots import Roots, apply_roots
from jorge_optax._rules import Composite, Series
from jorge_optax._stacks import Stacks
from jorge_optax._tiling import Tiling


class JorgeState(NamedTuple):
    """State of :func:`scale_by_jorge`.

    Attributes:
      count: number of updates so far, int32, shape ``[]``.
      roots: tile shape ``"RxC"`` to the roots of the stack of such tiles, left
        ``[n, R, R]`` and right ``[n, C, C]``. A stack holds the tiles of that shape
        of all parameters. (A scalar where no parameter has roots.)
      statistics: what the rule of refreshing keeps beside the roots: nothing for
        :class:`Series`, statistics of the roots' shapes for :class:`Composite`.
    """

    count: Any  # pyright: ignore[reportIncompatibleMethodOverride]
    roots: dict[str, Roots]
    statistics: Any


def scale_by_jorge(
    *,
    eps: jax.typing.ArrayLike = 1e-6,
    update_interval: jax.typing.ArrayLike | optax.Schedule = 10,
    damping: jax.typing.ArrayLike = 0.0,
    refresh: Series | Composite | None = None,
    tiling: Tiling | None = None,
    root_dtype: str = "float32",
    precision: Any = "highest",
) -> optax.GradientTransformationExtraArgs:
    r"""Preconditions gradients by Jorge's approximate inverse fourth roots.

    The direction only: no momentum, grafting, decay or learning rate. See
    :func:`jorge_optax.jorge` for the whole optimizer, the mathematics and the
    arguments; leaves without roots are passed through.

    Args:
      eps: as in :func:`jorge_optax.jorge`.
      update_interval: as in :func:`jorge_optax.jorge`.
      damping: as in :func:`jorge_optax.jorge`.
      refresh: as in :func:`jorge_optax.jorge`.
      tiling: as in :func:`jorge_optax.jorge`.
      root_dtype: as in :func:`jorge_optax.jorge`.
      precision: as in :func:`jorge_optax.jorge`.

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
      >>> {key: roots.left.shape for key, roots in state[0].roots.items()}
      {'3x2': (1, 3, 3)}
    """
    inner = scale_stacks_by_jorge(
        eps=eps,
        update_interval=update_interval,
        damping=damping,
        refresh=refresh,
        root_dtype=root_dtype,
        precision=precision,
    )
    return at_least_float32(on_tiles(inner, tiling=tiling))


def scale_stacks_by_jorge(
    *,
    eps: Any,
    update_interval: Any,
    damping: Any,
    refresh: Series | Composite | None,
    root_dtype: Any,
    precision: Any,
) -> optax.GradientTransformation:
    """The same on stacks of tiles ``{"RxC": [n, R, C]}`` in place of leaves."""
    _validate(eps=eps, update_interval=update_interval, damping=damping)
    if not isinstance(refresh, Series | Composite | None):
        raise TypeError(
            "refresh must be a Series, which is the paper's rule, a Composite or None, "
            f"got {refresh!r}."
        )
    rule = refresh or Series()
    dtype = canonical_dtype("root_dtype", root_dtype)
    precision = _canonical_precision(precision)

    def init_fn(params: Any) -> JorgeState:
        stacks = params
        # Line 1: every root starts as eps^(-1/4) I.
        start = jnp.asarray(eps, dtype) ** jnp.asarray(-0.25, dtype)

        def identities(count: int, side: int) -> jax.Array:
            return jnp.tile(start * jnp.eye(side, dtype=dtype), (count, 1, 1))

        count = jnp.zeros([], jnp.int32)
        if not isinstance(stacks, dict):
            nothing: Any = jnp.zeros([], dtype)
            return JorgeState(count, nothing, rule.init(stacks, dtype))
        roots = {
            key: Roots(identities(n, rows), identities(n, columns))
            for key, (n, rows, columns) in ((k, s.shape) for k, s in stacks.items())
        }
        return JorgeState(count, roots, rule.init(stacks, dtype))

    def renew(kept: tuple[Any, Any], gradients: Stacks) -> tuple[Any, Any]:
        # Lines 5 to 8.
        with jax.named_scope("jorge/refresh_roots"):
            return rule.refresh(*kept, gradients, damping=damping, precision=precision)

    def update_fn(updates: Any, state: Any, params: Any = None):
        del params
        due = _refresh_is_due(state.count, update_interval)
        kept = state.roots, state.statistics
        roots, statistics = jax.lax.cond(due, renew, _keep, kept, updates)
        # Line 11.
        with jax.named_scope("jorge/precondition"):
            directions = {
                key: apply_roots(roots[key], gradients, precision=precision)
                for key, gradients in updates.items()
            }
        count = optax.safe_increment(state.count)
        return directions, JorgeState(count, roots, statistics)

    return optax.GradientTransformation(init_fn, update_fn)


def _keep(kept: Any, gradients: Stacks) -> Any:
    """Returns roots and statistics as they are."""
    del gradients
    return jax.lax.platform_dependent(kept, cpu=lambda x: x, default=_touch)


def _touch(kept: Any) -> Any:
    """Writes the first entry of each array onto itself.

    A branch that returns its operands makes XLA's GPU compiler copy them, twice, on
    every step that does not refresh. A branch that writes to them works in place (if
    the state is donated). On the CPU it is the other way round.
    """

    def touch(x: jax.Array) -> jax.Array:
        origin = (0,) * x.ndim
        first = jax.lax.dynamic_slice(x, origin, (1,) * x.ndim)
        return jax.lax.dynamic_update_slice(x, first, origin)

    return jax.tree.map(touch, kept)


def _refresh_is_due(count: jax.Array, update_interval: Any) -> jax.Array:
    interval = update_interval(count) if callable(update_interval) else update_interval
    # Schedules return floats, in which a large count would lose its last digits.
    interval = jnp.round(jnp.asarray(interval)).astype(jnp.int32)
    return count % jnp.maximum(interval, 1) == 0


def _canonical_precision(precision: Any) -> Any:
    if not isinstance(precision, str):
        return precision
    try:
        return jax.lax.Precision(precision)
    except ValueError as error:
        raise ValueError(
            f"precision must be one that jax.numpy.matmul takes, got {precision!r}. "
            "Choose 'highest', 'high' or 'default'."
        ) from error


def _validate(*, eps: Any, update_interval: Any, damping: Any) -> None:
    check_number(
        "eps",
        eps,
        "must be positive and finite",
        lambda x: 0 < x < math.inf,
        "Every root starts as eps**(-1/4) times the identity; the default is 1e-6.",
    )
    check_number(
        "damping", damping, "must be finite and at least 0", lambda x: 0 <= x < math.inf
    )
    if not callable(update_interval):
        check_number(
            "update_interval",
            update_interval,
            "must be an integer of at least 1, or a schedule of the step",
            lambda x: 1 <= x < math.inf and x == int(x),
            "The roots are refreshed every update_interval steps.",
        )
