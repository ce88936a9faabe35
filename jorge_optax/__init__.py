"""Jorge, a second-order optimizer as cheap per step as SGD, for JAX and Optax."""

from jorge_optax._alias import jorge
from jorge_optax._grafting import GraftState, graft
from jorge_optax._matrices import MatrixView, default_view
from jorge_optax._roots import Roots
from jorge_optax._tiling import Tiling
from jorge_optax._transform import JorgeState, scale_by_jorge

__version__ = "0.1.0"

__all__ = (
    "GraftState",
    "JorgeState",
    "MatrixView",
    "Roots",
    "Tiling",
    "default_view",
    "graft",
    "jorge",
    "scale_by_jorge",
)
