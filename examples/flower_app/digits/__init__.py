"""An app for Flower: handwritten digits."""
