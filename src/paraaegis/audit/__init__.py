"""Attack our own noise, and compare the result with the claim."""
