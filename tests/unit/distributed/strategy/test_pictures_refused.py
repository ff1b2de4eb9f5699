"""What an engine refuses of pictures before it starts."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from roll.distributed.strategy.sglang.generate import SglangStrategy
from roll.distributed.strategy.vllm.generate import VllmStrategy
from roll.errors import StrategyError
from tests.helpers.engines import rank_context, role
from tests.helpers.pictures import make_model_dir


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"), "qwen2_5_vl")


def test_engines_without_support_refuse_pictures(model_dir: Path) -> None:
    context = replace(rank_context(shows_pictures=True), keeps_kv=True)
    with pytest.raises(StrategyError, match="actor_infer: kv_on_update: keep .* Set kv_on_update: recompute"):
        asyncio.run(VllmStrategy(role("vllm", model_dir, 1, {}), context).start())
    with pytest.raises(StrategyError, match="actor_infer: sglang shows no pictures here"):
        asyncio.run(SglangStrategy(role("sglang", model_dir, 1, {}), rank_context(shows_pictures=True)).start())
