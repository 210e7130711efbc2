"""A protected app whose nodes make known updates."""
