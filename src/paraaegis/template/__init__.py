"""The project that `paraaegis new` writes."""
