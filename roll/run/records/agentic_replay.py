"""The former place of `python -m roll.run.records.replay`, which shows the rollouts of every pipeline."""

import sys

from roll.run.records.replay import main

if __name__ == "__main__":
    sys.exit(main())
