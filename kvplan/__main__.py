"""``python -m kvplan``: the command line, where no script folder is on the path."""

import sys

from kvplan.cli import main

if __name__ == "__main__":
    sys.exit(main())
