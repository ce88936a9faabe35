"""What the examples share: models, data, the training loop."""
