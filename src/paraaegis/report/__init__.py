"""One page about a set of runs: their results, costs and privacy guarantees. Reads only run folders."""
