"""How large a number may be that a person means. Beyond these a dry run would count, list or print for ever."""

LARGEST = 10**9  # of any number without a limit of its own: fp32 and every engine's integers hold it
LARGEST_REWARD = 3.4028234663852886e38  # float32's, as which rewards are kept
LARGEST_SEED = 2**32 - 1  # the engines seed numpy, which takes 32 bits
MOST_NODES = 100_000
MOST_DEVICES_PER_NODE = 1_000
MOST_DEVICES = 1_000_000
MOST_PROCESSES = 10_000  # of a role on the CPU
MOST_GROUPS = 1_000_000  # of a step, and of answers to one prompt
MOST_SAMPLES = 10_000_000  # of a step
