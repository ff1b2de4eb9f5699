"""Random programs against a real engine: the log-prob of every trained token is that of a whole forward pass over what
stands before it in its row, every received token is trained once, and breaks lie where a plain comparison finds them.

The model is a tiny one that has learnt a handful of answers by heart, so that it calls tools and thinks; weights change
amid sessions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from roll.models.tiny import build_model, build_tokenizer, save_pretrained
from roll.pipeline.agentic.episode import Counts, EpisodeRules
from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
from roll.types.rollout import SamplingParams, Trajectory
from tests.helpers.engines import EngineHarness, forward_log_probs, load_model
from tests.unit.pipeline.agentic.proxy.parts import JOB, OPEN, proxy_rules
from tests.unit.pipeline.agentic.proxy.random_program import (
    ACTIONS,
    ENCODERS,
    SAID,
    Messages,
    Program,
    Record,
    trained_rows,
)

LONGEST, MOST_SAMPLED = 700, 100
STEPS, TAUGHT = 150, 700  # then nine of ten answers are of these
MEAN, MOST = 1e-6, 2e-5
"""Log-probs are measured by a float64 pass, since a float32 one has errors of its own. Of 37,101 tokens those of the
engine were 2.8e-7 away from it on average and 9.4e-6 at most (1.05e-5 in another run), those of one Hugging Face pass
in float32 4.4e-7 and 1.9e-5, and those of Hugging Face with its cache 3.2e-7 and 1.4e-5."""


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talker]:
    """An engine of a model that says what stands in SAID, mostly."""
    import torch

    tokenizer = build_tokenizer()
    model = build_model(tokenizer, tie_word_embeddings=False)
    rng = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=1.0)
    for _ in range(STEPS):
        texts = [ENCODERS["keeps"].render(conversation(rng), [OPEN], False) for _ in range(2)]
        ids = torch.stack([torch.tensor(tokenizer(text).input_ids[:TAUGHT]) for text in texts])
        logits = model(input_ids=ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.02)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    folder = save_pretrained(tmp_path_factory.mktemp("talker"), model, tokenizer)
    harness = EngineHarness("hf_infer", folder, max_model_len=2048)
    yield Talker(harness, tmp_path_factory.mktemp("buckets"))
    harness.close()


def conversation(rng: random.Random) -> Messages:
    messages: Messages = [{"role": "system", "content": "be brief"}]
    for _ in range(40):
        question = rng.choice(("box F?", "go on", "and now?", "<tool_response>\n2\n</tool_response>"))
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": rng.choice(SAID)}]
    return messages


class Talker:
    """An engine whose weights change, and the models of each version of them, in float64."""

    def __init__(self, harness: EngineHarness, folder: Path):
        self.harness, self._folder = harness, folder
        self._models = [deepcopy(harness.model).double()]

    def errors(self, row: Trajectory) -> np.ndarray:
        """How far the log-prob of each sampled token is from that of a whole forward pass over what stands before it
        in its row."""
        sampled = np.flatnonzero(row.response_mask)
        wrong: list[np.ndarray] = []
        for version in set(row.policy_versions[sampled].tolist()):
            places = sampled[row.policy_versions[sampled] == version]
            whole = forward_log_probs(self._models[version], row.input_ids[:1], row.input_ids[1:])
            wrong.append(np.abs(row.log_probs[places] - whole[places - 1]))
        return np.concatenate(wrong)

    async def learn(self) -> None:
        """Gives the engine slightly other weights, as the trainer does between steps."""
        import torch

        model = load_model(self.harness.model_dir)
        generator = torch.Generator().manual_seed(len(self._models))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.004 * torch.randn(parameter.shape, generator=generator)
        await self.harness.update(model, "file", self._folder)
        self._models.append(deepcopy(model).double())


def play(talker: Talker, template: str, seed: int, num_actions: int) -> Program:
    """Plays a program, and checks everything that it left."""
    rng = random.Random(seed)
    narrow = {"sampling": SamplingParams(MOST_SAMPLED), "max_answer_tokens": MOST_SAMPLED, "max_length": LONGEST}
    rules = EpisodeRules(**{**vars(proxy_rules()), **narrow, "seed": seed})
    record = Record(talker.harness.engine.generate)
    session = Endpoint(ENCODERS[template], record).open(JOB, 0, rules, Counts(), {})
    program = Program(session, record, seed, template == "keeps")

    async def run() -> None:
        for _ in range(num_actions):
            await program.act(rng.choice(ACTIONS))
            if rng.random() < 0.1:
                await talker.learn()

    talker.harness.run(run(), timeout_s=200)
    wrong = [talker.errors(row) for row in trained_rows(program)]
    if wrong:
        differences = np.concatenate(wrong)
        assert differences.mean() < MEAN and differences.max() < MOST
    return program


@pytest.mark.parametrize("template", ENCODERS)
def test_what_a_program_leaves_is_what_the_engine_sampled(talker: Talker, template: str) -> None:
    programs = [play(talker, template, seed, 16) for seed in range(3)]
    assert sum(program.num_breaks for program in programs) > 3
    calls = [call for program in programs for call in program.served if "open" in call]
    assert calls, "the model has forgotten how to call"
