"""Runs, and what is made of their folders."""
