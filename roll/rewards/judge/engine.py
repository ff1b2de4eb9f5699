"""A judge on engines of the run: its own tokenizer and chat template, greedy unless told otherwise."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from roll.configs.sections.cluster import GeneratingArgs, WorkerConfig
from roll.configs.tables.sight import VisionModel
from roll.datasets.encoding import decoder
from roll.datasets.loader import Row
from roll.datasets.messages import PICTURE
from roll.datasets.pictures.expansion import expand
from roll.datasets.prompt_template import PromptTemplate
from roll.datasets.rows import Example
from roll.distributed.strategy.stop_strings import answer_texts
from roll.errors import ConfigError, PictureError, RewardError, StrategyError
from roll.models.tokenizer import tokenizer_key, tokenizer_of
from roll.models.vision.files import vision_of
from roll.rewards.config import ANSWER_TOKENS
from roll.rewards.judge.judge import Reply
from roll.rewards.judge.prompt_marks import without_control_marks
from roll.rl.settings import sampling_params
from roll.types.media import Picture, PictureSource, Prompt
from roll.types.rollout import Generate, Generation, GenerationRequest, SamplingParams
from roll.utils.thinking import opened

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Decode = Callable[[Sequence[PictureSource]], Awaitable[Sequence[Picture]]]


@dataclass(frozen=True)
class JudgeText:
    """Conversion of a judge's input and output to and from text. `vision`: its model, if it sees pictures."""

    tokenizer: PreTrainedTokenizerBase
    template: PromptTemplate
    vision: VisionModel | None = None

    @staticmethod
    def load(role: str, worker: WorkerConfig, limits: tuple[int | None, int | None] = (None, None)) -> JudgeText:
        """`limits`: fewest and most pixels of a picture. Raises ConfigError where the model has no tokenizer, or not
        the template that is asked for."""
        tokenizer = tokenizer_of(worker.model_args, tokenizer_key(role, worker.model_args))
        key, args = f"{role}.data_args.template", worker.data_args
        template = PromptTemplate.load(args.template, tokenizer, key, args.template_kwargs)
        vision = vision_of(worker.model_args)
        return JudgeText(tokenizer, template, None if vision is None else vision.with_limits(*limits))

    def render(self, text: str, num_pictures: int = 0) -> str:
        """One message of a user as a prompt, behind so many pictures. Special tokens, and marks of turns that are none,
        lose their meaning: a policy that writes the end of its turn must not go on as somebody else."""
        content: Any = self._plain(text)
        if num_pictures:
            content = [*[{"type": PICTURE}] * num_pictures, {"type": "text", "text": content}]
        message = {"role": "user", "content": content}
        return self.template.render(Example(Row("the judge's prompt", 0, {}), "", (message,), is_text=not num_pictures))

    def check_pictures(self, role: str) -> None:
        """ConfigError where the template does not write a picture's place."""
        assert self.vision is not None
        try:
            count = int((self.encode(self.render("?", 1)) == self.vision.image_token).sum())
        except ConfigError:  # of templates that are made for texts
            count = 0
        if count != 1:
            raise ConfigError(
                f"{role}.data_args.template: it writes {count} placeholders for a picture, which the judge is shown. "
                "Use native, or set judge_sees_pictures: false in the domains that it judges"
            )

    def encode(self, prompt: str) -> np.ndarray:
        ids = self.tokenizer(prompt, add_special_tokens=self.template.adds_special_tokens, verbose=False)
        return np.array(ids["input_ids"], np.int32)

    def decode(self, prompt: str, generation: Generation, sampling: SamplingParams) -> str:
        return opened(prompt, answer_texts(decoder(self.tokenizer), [generation], sampling)[0])

    def _plain(self, text: str) -> str:
        """Example: "<|im_end|>" becomes "< |im_end|>"."""
        added = self.tokenizer.added_tokens_decoder.values()
        marks = sorted((t.content for t in added if t.special or re.match(r"[<\[]", t.content)), key=len)
        pattern = "|".join(re.escape(mark) for mark in reversed(marks) if len(mark) > 1)
        text = re.sub(pattern, lambda match: f"{match[0][0]} {match[0][1:]}", text) if pattern else text
        return without_control_marks(text)


class EngineModel:
    """Asks the engines of a judge. A prompt that leaves no room for a verdict fails its answer; nothing is cut off.
    `decode`: makes pictures of their sources, for a judge that sees."""

    def __init__(
        self,
        name: str,
        generate: Generate,
        text: JudgeText,
        keys: GeneratingArgs,
        seed: int,
        decode: Decode | None = None,
    ):
        self._name, self._generate, self._text, self._seed, self._decode = name, generate, text, seed, decode
        self._sampling = sampling_params(keys, keys.max_new_tokens or ANSWER_TOKENS)
        self._numbers = itertools.count()

    async def reply(self, text: str, max_retries: int, pictures: Sequence[PictureSource] = ()) -> Reply:
        rendered = await asyncio.to_thread(self._text.render, text, len(pictures))
        prompt = await self._shown(await asyncio.to_thread(self._text.encode, rendered), pictures)
        request = GenerationRequest(
            f"{self._name}-{next(self._numbers)}",
            prompt.ids,
            replace(self._sampling, seed=_seed(self._seed, prompt.ids, max_retries)),
            media=prompt.media,
        )
        try:
            (answer,) = await self._generate(request)
        except StrategyError as error:  # the engine refuses this request, and no other one
            raise RewardError(f"the judge cannot be asked: {error}") from None
        return Reply(
            await asyncio.to_thread(self._text.decode, rendered, answer, self._sampling),
            len(prompt.ids),
            len(answer.token_ids),
            answer.finish_reason == "length",
        )

    async def _shown(self, ids: np.ndarray, sources: Sequence[PictureSource]) -> Prompt:
        """The prompt as the judge's model sees it. RewardError for a picture that cannot be shown."""
        if not sources:
            return Prompt(ids)
        assert self._decode is not None and self._text.vision is not None
        try:
            return expand(ids, await self._decode(sources), self._text.vision)
        except PictureError as error:
            raise RewardError(f"the judge cannot be shown a picture: {error}") from None


def _seed(seed: int, prompt: np.ndarray, attempt: int) -> int:
    """The same for the same question, in whatever order questions come: a resumed run gets the same verdicts."""
    message = seed.to_bytes(8, "little", signed=True) + attempt.to_bytes(8, "little") + prompt.tobytes()
    return int.from_bytes(hashlib.blake2b(message, digest_size=6).digest(), "little")
