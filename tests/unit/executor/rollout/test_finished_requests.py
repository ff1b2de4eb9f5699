import numpy as np

from roll.distributed.executor.rollout.generate_worker import FinishedRequests
from roll.types.rollout import Generation


def answer(*token_ids: int, reason: str = "stop") -> Generation:
    tokens = np.array(token_ids, np.int32)
    return Generation(tokens, (-tokens / 10).astype(np.float32), np.full(len(tokens), 3, np.int32), reason)  # type: ignore[arg-type]


def test_answers_and_errors_come_back_as_they_were_packed():
    results = [
        ("a", [answer(1, 2), answer(reason="abort")]),
        ("b", "StrategyError: too long"),
        ("c", [answer(7, 8, 9, reason="length")]),
    ]
    unpacked = FinishedRequests.pack(results).unpack()
    assert [name for name, _ in unpacked] == ["a", "b", "c"]
    assert unpacked[1][1] == "StrategyError: too long"
    first, empty = unpacked[0][1]
    (last,) = unpacked[2][1]
    assert isinstance(first, Generation)
    assert isinstance(empty, Generation)
    assert isinstance(last, Generation)
    assert (first.token_ids.tolist(), first.finish_reason) == ([1, 2], "stop")
    assert (empty.token_ids.tolist(), empty.finish_reason) == ([], "abort")
    assert (last.token_ids.tolist(), last.finish_reason) == ([7, 8, 9], "length")
    np.testing.assert_allclose(last.log_probs, [-0.7, -0.8, -0.9], rtol=1e-6)
    assert last.policy_versions.tolist() == [3, 3, 3]


def test_errors_alone_travel_too():
    assert FinishedRequests.pack([("a", "dead")]).unpack() == [("a", "dead")]
