"""What a silo and a server need in a federation across organisations."""
