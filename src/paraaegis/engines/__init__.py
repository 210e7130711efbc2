"""Carriers of messages between the two halves of the protocol."""
