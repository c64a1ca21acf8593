"""`python -m fljax` is the command `fljax`."""

import sys

from fljax.cli import main

if __name__ == "__main__":
    sys.exit(main())
