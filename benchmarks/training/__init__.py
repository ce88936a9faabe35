"""Studies of how fast and how well optimizers train."""
