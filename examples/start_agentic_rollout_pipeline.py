"""Samples episodes of the validation and scores them, as `roll eval` does: nothing is trained (docs/modes.md).

python examples/start_agentic_rollout_pipeline.py --config_path tiny-frozen-lake --config_name tiny_frozen_lake
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that a checkout runs without being installed

from roll.commands.run import main

if __name__ == "__main__":
    sys.exit(main("agentic", [*sys.argv[1:], "mode=bench"], script=__file__))
