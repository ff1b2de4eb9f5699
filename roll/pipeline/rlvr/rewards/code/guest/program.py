"""Runs /box/solution.py as a program that reads stdin and writes stdout."""

import builtins
import runpy
import sys

from names import common_names

builtins.exit = builtins.quit = sys.exit  # these come with the `site` module, which is left out
builtins.__dict__.update(common_names())
sys.setrecursionlimit(100_000)
runpy.run_path("/box/solution.py", run_name="__main__")
