"""Data, models and local training. torch lives here, and only here."""
