"""`python3 precision_tool/cli.py` from the parent of the clone, as the old tool's manual says. Python 3.7 and newer.

The command line itself is `cli.py` of the package, which is the folder `precision_tool` beside this file.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
    from precision_tool.cli import main

    sys.exit(main())
