"""``python -m bcls`` is the same command as ``bcls``."""

import sys

from bcls.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
