"""One page about runs: what they reached, what it cost, whom it protects. Reads run folders only."""
