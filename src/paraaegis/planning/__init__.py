"""What a run will cost, and which ratio fits."""
