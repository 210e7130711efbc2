"""`python -m paraaegis` is `paraaegis`."""

from paraaegis.cli import main

main()
