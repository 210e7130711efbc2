"""Encryption, secret orders and keys, composed from vetted primitives. The only importer of tenseal."""
