"""Jorge, a second-order optimizer about as cheap per step as SGD, for JAX and Optax."""

from jorge_optax import lengths, tuning, views
from jorge_optax._config import JorgeConfig, from_adamw, from_scratch, from_sgd
from jorge_optax._diagnostics import Diagnostics, diagnostics
from jorge_optax._distributed import Spread
from jorge_optax._grafting import GraftState, graft
from jorge_optax._inspection import Description, describe, state_size
from jorge_optax._optimizer import jorge
from jorge_optax._resharding import reshard_state
from jorge_optax._rule import Preconditioner, Rule
from jorge_optax._schedules import growing_interval_schedule, thirds_decay_schedule
from jorge_optax._series import BinomialSeries
from jorge_optax._tiling import MatrixView, Tiling, default_view
from jorge_optax._transform import JorgeState, scale_by_jorge
from jorge_optax._types import Sides
from jorge_optax._whitening import Whitening

__version__ = "0.1.0"

__all__ = (
    "BinomialSeries",
    "Description",
    "Diagnostics",
    "GraftState",
    "JorgeConfig",
    "JorgeState",
    "MatrixView",
    "Preconditioner",
    "Rule",
    "Sides",
    "Spread",
    "Tiling",
    "Whitening",
    "default_view",
    "describe",
    "diagnostics",
    "from_adamw",
    "from_scratch",
    "from_sgd",
    "graft",
    "growing_interval_schedule",
    "jorge",
    "lengths",
    "reshard_state",
    "scale_by_jorge",
    "state_size",
    "thirds_decay_schedule",
    "tuning",
    "views",
)
