"""A small ResNet on scikit-learn's digits, for comparing optimizers."""
