"""Messages of many small objects arrive as what they were."""

import pickle

import numpy as np

from roll.distributed.executor.pools.job import packed
from roll.types.rollout import GenerationRequest, SamplingParams


def test_a_packed_value_arrives_as_itself() -> None:
    requests = [GenerationRequest(f"r{i}", np.arange(i + 1, dtype=np.int32), SamplingParams(8)) for i in range(3)]
    arrived = pickle.loads(pickle.dumps(packed(requests)))
    assert [request.request_id for request in arrived] == ["r0", "r1", "r2"]
    assert all(np.array_equal(a.prompt_ids, b.prompt_ids) for a, b in zip(arrived, requests, strict=True))
    assert arrived[0].sampling == requests[0].sampling


def test_what_pickle_does_not_take_goes_as_it_is() -> None:
    value = {"score": lambda: 1}
    assert packed(value) is value
