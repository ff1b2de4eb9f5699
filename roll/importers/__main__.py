"""python -m roll.importers FILE --out my.yaml: the same as `roll import`."""

import sys

from roll.commands.table import main

if __name__ == "__main__":
    sys.exit(main(["import", *sys.argv[1:]]))
