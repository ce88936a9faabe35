"""Models, data and the training loop that the examples share."""
