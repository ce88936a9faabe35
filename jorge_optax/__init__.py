"""Jorge, a second-order optimizer about as cheap per step as SGD, for JAX and Optax."""

from jorge_optax import lengths, tuning, views
from jorge_optax._describe import describe
from jorge_optax._optimizer import jorge, scale_by_jorge
from jorge_optax._paper import BinomialSeries
from jorge_optax._recipes import (
    from_adamw,
    from_scratch,
    from_sgd,
    from_sgd_as_published,
)
from jorge_optax._rule import Numerics, Rule
from jorge_optax._sharding import Sharded, Spread
from jorge_optax._states import diagnostics, reshard_state
from jorge_optax._step import JorgeState
from jorge_optax._tiles import Tiling
from jorge_optax._whitening import Whitening
from jorge_optax.lengths import graft
from jorge_optax.views import MatrixView

__version__ = "0.2.0"

__all__ = (
    "BinomialSeries",
    "JorgeState",
    "MatrixView",
    "Numerics",
    "Rule",
    "Sharded",
    "Spread",
    "Tiling",
    "Whitening",
    "describe",
    "diagnostics",
    "from_adamw",
    "from_scratch",
    "from_sgd",
    "from_sgd_as_published",
    "graft",
    "jorge",
    "lengths",
    "reshard_state",
    "scale_by_jorge",
    "tuning",
    "views",
)
