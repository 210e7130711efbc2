"""Benchmarks of what protection costs on this machine."""
