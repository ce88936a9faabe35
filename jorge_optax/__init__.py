"""Jorge, a second-order optimizer as cheap per step as SGD, for JAX and Optax."""

from jorge_optax._alias import jorge
from jorge_optax._bootstrap import FromAdamW, FromSGD, from_adamw, from_sgd
from jorge_optax._diagnostics import diagnostics
from jorge_optax._grafting import GraftState, graft
from jorge_optax._inspect import Description, describe, state_size
from jorge_optax._interval import IntervalChoice, choose_update_interval
from jorge_optax._matrices import MatrixView, default_view
from jorge_optax._roots import Roots
from jorge_optax._rules import Composite, Series
from jorge_optax._schedules import growing_interval, step_decay_in_thirds
from jorge_optax._tiling import Tiling
from jorge_optax._transform import JorgeState, scale_by_jorge

__version__ = "0.1.0"

__all__ = (
    "Composite",
    "Description",
    "FromAdamW",
    "FromSGD",
    "GraftState",
    "IntervalChoice",
    "JorgeState",
    "MatrixView",
    "Roots",
    "Series",
    "Tiling",
    "choose_update_interval",
    "default_view",
    "describe",
    "diagnostics",
    "from_adamw",
    "from_sgd",
    "graft",
    "growing_interval",
    "jorge",
    "scale_by_jorge",
    "state_size",
    "step_decay_in_thirds",
)
