"""python -P -m roll.studio.child FOLDERS WORDS: `roll WORDS` that finds code in these folders (a:b:c) and in the one it
is started in, which go last: nothing there takes the place of a module of Python, of a package, or of roll."""

import os
import sys
from pathlib import Path

from roll.commands.table import main
from roll.utils.imports import add_folder

if __name__ == "__main__":
    for folder in [*filter(None, sys.argv.pop(1).split(os.pathsep)), os.getcwd()]:
        add_folder(Path(folder))
    sys.exit(main())
