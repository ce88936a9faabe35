"""Models, data and the training loop that the examples share."""

import os

# Shampoo's eigendecompositions go through OpenBLAS, whose threads wait by spinning. On
# a machine with two busy cores they took 90 times as long as one thread (256 x 256:
# 0.68 s of CPU instead of 0.0077 s), the likely cause of a run that seemed to hang.
# Read when scipy is loaded, which jax does at the first decomposition.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
