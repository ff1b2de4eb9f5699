"""python -m roll: the command `roll` of a checkout that is not installed."""

import sys

from roll.commands.table import main

if __name__ == "__main__":
    sys.exit(main())
