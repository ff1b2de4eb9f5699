"""Starts an RLVR run whose rows show pictures, as `start_rlvr_pipeline.py` does as well (docs/pictures.md).

python examples/start_rlvr_vl_pipeline.py --config_path tiny-count --config_name tiny_count
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that a checkout runs without being installed

from roll.commands.run import main

if __name__ == "__main__":
    sys.exit(main("rlvr", script=__file__))
