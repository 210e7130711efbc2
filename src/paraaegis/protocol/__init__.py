"""The paper's protocol without any I/O: round.py is Algorithm 1, the rest is what it speaks of."""
