"""Episodes that show a new picture at each turn, against Hugging Face's own pass over the whole conversation.

Engine, ids, spans and positions of later turns are compared at once: the log-prob of each sampled token, by hf_infer as
it was sampled, equals that of the whole model over the finished row, whose pictures were decoded again from the row's
own files. It does not cover Ray, nor vllm (tests/e2e/test_pictures.py has both).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from roll.configs.sections.model import ModelArgs
from roll.datasets.pictures.decode import all_decoded
from roll.distributed.strategy.hf.sampler import BatchSampler
from roll.models.loading import load_policy
from roll.models.tokenizer import load_tokenizer
from roll.pipeline.agentic.sample_forms import ChatEncoder
from roll.types.rollout import Generation, GenerationRequest, SamplingParams
from tests.helpers.pictures import make_model_dir, seen_log_probs
from tests.parity.strategies.shown import vision
from tests.unit.pipeline.agentic.parts import env_config, job, player

FAMILIES = (
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "qwen3_5", "qwen3_5_moe", "qwen3_vl_moe", "glm4v_moe"),
    *("gemma3", "internvl"),
)


@pytest.mark.gate("qwen2_5_vl")
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_of_every_turn_are_those_of_the_whole_row(family: str, tmp_path: Path) -> None:
    model_dir = make_model_dir(tmp_path, family)
    loaded = load_policy(
        ModelArgs(model_name_or_path=str(model_dir), dtype="fp32", disable_gradient_checkpointing=True)
    )
    sampler = BatchSampler(loaded.pretrained.eval(), [1], None, 512, 64, vision=loaded.vision)

    async def generate(request: GenerationRequest) -> list[Generation]:
        sampler.submit(request)
        while not (answers := sampler.step()):
            pass
        return [answers[0].generation]

    sees = vision(model_dir)
    config = env_config(
        env_type="sokoban",
        env_config={"dim_room": [4, 5], "render_mode": "rgb_array", "cell_pixels": sees.sizes.factor // 2},
        env_manager_cls="vl_trajectory",
        pre_step_template="{turn_idx}: ",
        max_steps=4,
        max_tokens_per_step=6,
        action_pattern="(.*)",
    )
    encoder = ChatEncoder(load_tokenizer(str(model_dir)), vision=sees)
    sampling = SamplingParams(6, ignore_eos=True)
    plays = player(encoder, generate, config, max_length=500, sampling=sampling)
    rows = [asyncio.run(plays.play(replace(job(), env_seed=seed)))[0] for seed in range(2)]
    whole = AutoModelForImageTextToText.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
    for row in rows:
        assert row.failure is None
        assert len(row.media) == len(row.turns) == 4
        (shown,) = all_decoded([row.media])
        wanted = seen_log_probs(whole.eval(), sees, row.input_ids, shown, len(row.input_ids) - 1)
        sampled = row.response_mask[1:]
        assert sampled.sum() == 24
        assert np.abs(wanted - row.log_probs[1:])[sampled].max() < 1e-5
