"""The configurations and presets that are shipped with the package."""
