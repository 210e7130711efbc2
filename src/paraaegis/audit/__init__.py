"""An attack on our own noise."""
