"""`python -m precision_tool`."""

import sys

from precision_tool.cli import main

if __name__ == "__main__":
    sys.exit(main())
