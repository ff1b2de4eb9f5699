"""The former place of `python -m roll.pipeline.records.replay`, which shows the rollouts of every pipeline."""

import sys

from roll.pipeline.records.replay import main

if __name__ == "__main__":
    sys.exit(main())
