"""Runs /box/solution.py as a program that reads stdin and writes stdout; before it stands a mark that it has begun."""

import builtins
import os
import runpy
import sys

from names import common_names

BEGUN = b"\x06"  # what ends before it is no answer's doing

builtins.exit = builtins.quit = sys.exit  # these come with the `site` module, which is left out
builtins.__dict__.update(common_names())
sys.setrecursionlimit(100_000)
os.write(1, BEGUN)
runpy.run_path("/box/solution.py", run_name="__main__")
