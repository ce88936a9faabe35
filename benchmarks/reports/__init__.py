"""Tables and plots of the documentation, made from the committed JSON."""
