"""What protection costs on this machine."""
