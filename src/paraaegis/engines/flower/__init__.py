"""The same protocol across organisations, carried by Flower: its TLS, its authentication, its processes."""
