"""Noise, its calibration and its accounting."""
