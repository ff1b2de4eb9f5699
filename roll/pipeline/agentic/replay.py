"""The former place of `python -m roll.pipeline.replay`, which shows the rollouts of every pipeline."""

import sys

from roll.pipeline.replay import main

if __name__ == "__main__":
    sys.exit(main())
