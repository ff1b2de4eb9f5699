"""Waits until so many nodes are in the Ray cluster at RAY_ADDRESS: `python wait_for_nodes.py NODES [SECONDS]`.

A run does not wait for nodes: it refuses with exit code 2 when they are not there.
"""

import logging
import sys
import time

import ray


def main(num_nodes: int, limit_s: float) -> int:
    """0 when they are there, 1 when they are not within `limit_s` seconds."""
    ray.init(address="auto", log_to_driver=False, logging_level=logging.WARNING)
    until = time.monotonic() + limit_s
    while (alive := sum(node["Alive"] for node in ray.nodes())) < num_nodes:
        if time.monotonic() > until:
            print(f"{alive} of {num_nodes} nodes joined within {limit_s:g} s", file=sys.stderr)
            return 1
        time.sleep(1)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 600))
