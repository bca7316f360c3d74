"""``python -m kvplan.cli``."""

from kvplan.cli import main

main()
