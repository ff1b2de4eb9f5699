"""Seeds of the samples of one request."""

from roll.types.rollout import SamplingParams


def test_every_sample_has_a_seed_of_its_own_that_does_not_change() -> None:
    """vLLM's own seed + index would give sample 1 of seed 5 and sample 0 of seed 6 the same tokens."""
    seeds = [SamplingParams(1, seed=seed).seed_of(index) for seed in (0, 5, 6, 2**70) for index in range(4)]
    assert len(set(seeds)) == 16
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)
    assert SamplingParams(1, seed=5).seed_of(1) == 6049641097658167882
    assert SamplingParams(1).seed_of(1) is None
