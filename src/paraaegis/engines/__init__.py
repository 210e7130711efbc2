"""Transports that carry messages between the protocol's server and clients."""
