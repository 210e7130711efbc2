"""The same protocol across organisations, over Flower: its TLS, authentication and processes."""
