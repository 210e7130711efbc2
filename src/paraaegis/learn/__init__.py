"""Data, models and local training. Only this package imports torch."""
