"""The paper's protocol, without any I/O: round.py is Algorithm 1, the other modules are what it is built from."""
