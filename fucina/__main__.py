"""``python -m fucina``: the command line without an installed script."""

import sys

from fucina.cli import main

if __name__ == "__main__":
    sys.exit(main())
