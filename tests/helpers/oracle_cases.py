"""What the package and the oracle are both given."""

import numpy as np

STEPS = 25
MAX_DIM = 12
# shape, lengths of the row cuts and of the column cuts at MAX_DIM
CASES = {
    "square": ((8, 8), None, None),
    "tall": ((12, 5), None, None),
    "very tall": ((12, 2), None, None),
    "wide": ((4, 11), None, None),
    "conv": ((2, 2, 3, 5), None, None),
    "two by two": ((2, 2), None, None),
    "tiles": ((24, 20), (12, 12), (10, 10)),
    "tiles of two sizes": ((13, 17), (7, 6), (9, 8)),
    "conv in tiles": ((3, 3, 4, 6), (12, 12, 12), None),
    "bias": ((7,), None, None),
    "scalar": ((), None, None),
    "column": ((9, 1), None, None),
}


def gradients(shape, seed, dtype=np.float64):
    """Noise around a drifting mean, so that the roots have something to learn."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=shape)
    for step in range(STEPS):
        noise = rng.normal(size=shape)
        yield np.asarray(0.3 * mean * np.cos(step / 9) + noise, dtype)
