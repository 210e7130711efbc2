"""What silos and the server need in a federation across organisations."""
