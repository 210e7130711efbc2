"""One run: assembled, carried out, recorded."""
