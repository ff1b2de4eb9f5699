"""Seeds for engines that take the samples of a group as requests of their own."""

import hashlib


def sample_seed(seed: int, index: int) -> int:
    """A 63-bit seed of its own for each (seed, index)."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
