"""`python -m kvplan`: the command line, where its script is not on the path."""

from kvplan.offline.cli import main

if __name__ == "__main__":
    main()
