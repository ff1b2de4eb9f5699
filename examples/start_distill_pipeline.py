"""Starts distillation: `python examples/start_distill_pipeline.py --config_path tiny-sort --config_name
tiny_sort_distill`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that a checkout runs without being installed

from roll.commands.run import main

if __name__ == "__main__":
    sys.exit(main("distill", script=__file__))
