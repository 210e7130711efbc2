"""One run: put together, carried out, written down."""
