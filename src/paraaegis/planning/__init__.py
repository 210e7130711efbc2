"""Estimate what a run will cost, and choose the ratio that fits."""
