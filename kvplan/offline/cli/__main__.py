"""``python -m kvplan.offline.cli``."""

from kvplan.offline.cli import main

main()
