"""Studies of how close cheap roots are to the exact roots of Shampoo."""
