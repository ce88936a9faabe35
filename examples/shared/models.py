"""Models by name."""

from collections.abc import Callable, Mapping
from typing import Any


def make(models: Mapping[str, Callable[..., Any]], name: str, **options: Any) -> Any:
    """Returns the model of that name, made with these options."""
    if name not in models:
        raise ValueError(f"No model is called {name!r}; there are {', '.join(models)}.")
    return models[name](**options)
