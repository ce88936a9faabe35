"""The demo: a small ResNet on scikit-learn's digits with SGD, AdamW and Jorge."""
