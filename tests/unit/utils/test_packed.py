"""Values that travel, attributes that are replaced for a while, and texts that are made safe to show."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from roll.distributed.executor.pools.job import packed
from roll.types.rollout import GenerationRequest, SamplingParams
from roll.utils.imports import replaced
from roll.utils.text import middle_left_out, visible


def test_a_packed_value_arrives_as_itself() -> None:
    requests = [GenerationRequest(f"r{i}", np.arange(i + 1, dtype=np.int32), SamplingParams(8)) for i in range(3)]
    arrived = pickle.loads(pickle.dumps(packed(requests)))
    assert [request.request_id for request in arrived] == ["r0", "r1", "r2"]
    assert all(np.array_equal(a.prompt_ids, b.prompt_ids) for a, b in zip(arrived, requests, strict=True))
    assert arrived[0].sampling == requests[0].sampling
    value = {"score": lambda: 1}
    assert packed(value) is value


class Base:
    @staticmethod
    def method() -> str:
        return "real"


class Derived(Base):
    pass


def test_an_attribute_is_put_back_as_it_was() -> None:
    owner = SimpleNamespace(number=1)
    with pytest.raises(ZeroDivisionError), replaced(owner, "number", 2):
        assert owner.number == 2
        _ = 1 / 0
    assert owner.number == 1
    with replaced(Derived, "method", lambda: "other"):
        assert (Derived.method(), Base.method()) == ("other", "real")
    assert Derived.method() == "real" and "method" not in vars(Derived)
    with replaced(Base, "method", lambda: "other"):
        assert Base.method() == "other"
    assert Base().method() == "real"
    with pytest.raises(AttributeError), replaced(SimpleNamespace(), "number", 2):
        pass


def test_odd_characters_are_spelled_out_and_long_texts_keep_their_ends() -> None:
    assert visible("\x1b[2J\r\x9b1m\x7f") == "\\x1b[2J\\x0d\\x9b1m\\x7f"
    assert visible("a\u202eb\u2066c\u200f\u2028") == "a\\u202eb\\u2066c\\u200f\\u2028"
    assert visible("\ud800 \U000e0041") == "\\ud800 \\U000e0041"
    text = "tab\there\nline, zażółć, 漢字, עברית, العربية, \u200bfamily 👨\u200d👩\u200d👧, 1 ≤ 2"
    assert visible(text) == text
    assert middle_left_out("abcdef", 6) == "abcdef"
    assert middle_left_out("abcdefg", 4) == "ab\n[... 3 characters left out ...]\nfg"
