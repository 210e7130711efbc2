"""Encryption, secret orders and keys, composed from vetted primitives. Only this package imports tenseal."""
