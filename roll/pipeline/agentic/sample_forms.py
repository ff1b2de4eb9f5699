"""The forms of an episode's samples: what a prompt looks like, and how turns become training rows."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from roll.configs.tables.sight import VisionModel
from roll.datasets.answers.end_tokens import Ends
from roll.datasets.encoding import decoder, special_tokens
from roll.datasets.messages import clean_messages
from roll.datasets.pictures.expansion import cut_media, expand
from roll.datasets.prompt_template import PromptTemplate
from roll.datasets.tool_calls import plain, rendered
from roll.envs.base import Conversation
from roll.envs.config import (
    AGENT_NATIVE,
    OBSERVATIONS,
    STEP,
    STEP_CONCAT,
    TRAJECTORY,
    VL_TRAJECTORY,
    EnvConfig,
    fields_of,
    fill,
)
from roll.errors import ConfigError, EnvError, PictureError, describe
from roll.pipeline.agentic.observations import Observation, Part
from roll.types import media
from roll.types.media import Media, Picture
from roll.types.rollout import Generation, Trajectory, routes_of_row
from roll.types.texts import Turn
from roll.utils.thinking import answer_opening, marking_tokens, without_marks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Chat messages as token ids that can be put one after the other: what was sampled is never encoded again.

ANSWER = "\u2060answer\u2060"  # stands for an answer when a template shows what follows one
OBSERVATION = "\u2060observation\u2060"  # stands for one that shows pictures while a template is filled
LONG = 20_000
"""Characters of a text that takes so long to encode that an event loop has a thread do it."""
Content = str | list[dict[str, str]]
"""Content of a message, as chat templates know it: a text, or parts of which some are pictures."""
Messages = Sequence[tuple[str, Content]]


class ChatEncoder:
    """Turns messages into ids with the model's chat template.

    Example (Qwen): `start([("user", "hi")])` ends in `<|im_start|>assistant\\n`; after the sampled `yes<|im_end|>`
    comes `follow_up("go on")`: `\\n<|im_start|>user\\ngo on<|im_end|>\\n<|im_start|>assistant\\n`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: str = "native",
        reads_tool_calls: bool = False,
        vision: VisionModel | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ):
        """`reads_tool_calls`: arguments of a message's tool calls that are JSON texts become mappings first, or, for
        templates that want them so, texts again. `vision`: how the model sees pictures, if it does. `variables`: what
        the template sees beside the messages."""
        self._tokenizer = tokenizer
        self.vision = vision
        self.placeholders = frozenset(() if vision is None else vision.placeholders)
        """Ids that stand for pictures; a policy that samples one has said nothing."""
        self._reads_tool_calls = reads_tool_calls
        self._template = PromptTemplate.load(template, tokenizer, "actor_train.data_args.template", variables)
        self.ends = Ends(tokenizer)
        self._decode = decoder(tokenizer)
        self._has_special_marks = bool(marking_tokens(special_tokens(tokenizer)))
        self.answer_opening = answer_opening(self._render([("user", "x")]))
        """What the template itself puts at the beginning of every answer."""

    def start(self, messages: Messages) -> np.ndarray:
        """Ids of a conversation up to where the answer begins. int32."""
        return self.encode(self._render(messages))

    def conversation(self, conversation: Conversation) -> np.ndarray:
        """Ids of a conversation that an environment keeps, up to where the answer begins. int32. Raises EnvError if the
        chat template does not take it."""
        try:
            messages = clean_messages(list(conversation.messages), parses=self._reads_tool_calls)
            return self.encode(self.render(messages, plain(list(conversation.tools))))
        except Exception as error:  # whatever a template raises
            raise EnvError(
                f"the chat template does not take the environment's conversation: {describe(error)}"
            ) from None

    def render(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] = (), asks: bool = True) -> str:
        """The text of clean messages. `asks`: up to where the answer begins. Raises what the template raises."""
        return rendered(lambda form: self._rendered(form, list(tools) or None, asks), messages)

    @property
    def template_source(self) -> str:
        source = self._template.form.source or self._tokenizer.chat_template
        return source if isinstance(source, str) else str((source or {}).get("default", ""))

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._tokenizer

    def expanded(self, ids: np.ndarray, pictures: Sequence[Picture]) -> media.Prompt:
        """The ids with as many for each picture as it has tokens. Raises EnvError where the template wrote more or
        fewer placeholders than there are pictures, or a text holds one."""
        if self.vision is None:
            return media.Prompt(ids)
        try:
            return expand(ids, pictures, self.vision)
        except PictureError as error:
            raise EnvError(f"{error}; the chat template has to write one for each, and texts must hold none") from None

    def follow_up(self, answer_ids: np.ndarray, message: Content) -> np.ndarray:
        """Ids between a sampled answer and the next one: the end of the answer's turn, unless the answer has ended, and
        the next user message. int32.

        A turn ends once: with the token that the policy sampled, if engines stop there, which then stands for the
        template's own end. Example of gpt-oss: `yes<|return|>` is followed by `<|start|>user`, not by `<|end|>`."""
        after = self._ids_behind([("user", "x"), ("assistant", ANSWER), ("user", message)])
        said, closing = answer_ids.tolist(), self._closing
        if said and (said[-1] in self.ends.tokens or said[-1:] == closing[-1:].tolist()):
            begins_next = not len(closing) and said[-1:] == after[:1].tolist()  # GLM's: the next role's mark
            return after[len(closing) + begins_next :]
        overlaps = (n for n in range(len(closing), 0, -1) if said[-n:] == closing[:n].tolist())
        return after[next(overlaps, 0) :]

    @cached_property
    def _closing(self) -> np.ndarray:
        """Ids with which the template ends an assistant's turn that others follow, up to the last special one."""
        after = self._ids_behind([("user", "x"), ("assistant", ANSWER), ("user", "x")]).tolist()
        try:
            last = self._ids_behind([("user", "x"), ("assistant", ANSWER)], asks=False).tolist()
        except TemplateError:
            last = []
        special = self.ends.special
        shared = next(
            (i for i, (a, b) in enumerate(zip(after, last, strict=False)) if a != b), min(len(after), len(last))
        )
        ends = [place for place in range(shared) if after[place] in special]
        if not ends and last[:1] and last[0] in self.ends.tokens and after[0] in special:  # gpt-oss: one for another
            ends = [0]
        return np.array(after[: ends[-1] + 1 if ends else 0], np.int32)

    def _ids_behind(self, messages: Messages, asks: bool = True) -> np.ndarray:
        _, marker, after = self._render(messages, asks).partition(ANSWER)
        if not marker or ANSWER in after:
            raise ConfigError(
                "actor_train.data_args.template: the chat template changes the assistant's messages, so a "
                "conversation cannot be continued after sampled tokens. Use another Jinja template."
            )
        return self.encode(after)

    def decode(self, ids: np.ndarray) -> str:
        """The text of an answer, without special tokens but those that mark its thinking."""
        return self._decode([ids])[0]

    def as_words(self, answer: str) -> str:
        """An answer as part of a message: marks of thinking that are special tokens would be some there, too."""
        return without_marks(answer) if self._has_special_marks else answer

    def show(self, ids: np.ndarray) -> str:
        """The text with special tokens."""
        return str(self._tokenizer.decode(ids.tolist()))

    def encode(self, text: str) -> np.ndarray:
        """Ids of a text in which special tokens are named. int32."""
        if isinstance(self._tokenizer, PreTrainedTokenizerFast) and len(text) > LONG:  # other threads go on meanwhile
            (encoding,) = self._tokenizer.backend_tokenizer.encode_batch_fast([text], add_special_tokens=False)
            ids = encoding.ids
        elif isinstance(self._tokenizer, PreTrainedTokenizerFast):  # its Rust part alone takes a third of the time
            ids = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        else:
            ids = self._tokenizer.encode(text, add_special_tokens=False)
        return np.array(ids, np.int32)

    def _render(self, messages: Messages, asks: bool = True) -> str:
        return self._rendered([{"role": role, "content": content} for role, content in messages], asks=asks)

    def _rendered(self, messages: list[dict[str, Any]], tools: list[Any] | None = None, asks: bool = True) -> str:
        return self._template.opening + str(
            self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                chat_template=self._template.form.source,
                add_generation_prompt=asks,
                tokenize=False,
                **self._template.form.variables,
            )
        )


@dataclass(frozen=True)
class Prompt:
    """Prompt of the policy. `is_cut`: it did not fit and lost its beginning, or part of its history. `media`: the
    pictures that it shows."""

    ids: np.ndarray  # int32
    is_cut: bool = False
    media: Media = ()


@dataclass(frozen=True)
class PlayedTurn:
    """A turn with its tokens. `state`: a text that is the same for the same observation."""

    prompt: Prompt
    generation: Generation
    turn: Turn
    state: str


@dataclass(frozen=True)
class Scene:
    """Values that a template may show."""

    observation: Observation
    max_steps: int
    max_answer_tokens: int
    instruction: str
    turns: Sequence[PlayedTurn]

    def values(self) -> dict[str, object]:
        done = len(self.turns)
        return {
            **dict.fromkeys(OBSERVATIONS, self.observation.text),
            "turn_idx": done + 1,
            "actions_left": self.max_steps - done,
            "max_response_length": self.max_answer_tokens,
            "env_instruction": self.instruction,
            "current_step": done + 1,
            "step_count": done,
        }


def _row(turns: Sequence[PlayedTurn], turn: int = 0) -> Trajectory:
    """A training row of turns, each of whose prompts begins with all that was sent and sampled in the turn before."""
    last = turns[-1]
    ids = np.concatenate([last.prompt.ids, last.generation.token_ids]).astype(np.int32)
    mask = np.zeros(len(ids), bool)
    log_probs = np.zeros(len(ids), np.float32)
    versions = np.full(len(ids), -1, np.int32)
    for number, played in enumerate(turns, 1):
        sent = np.concatenate([played.prompt.ids, played.generation.token_ids])
        if not np.array_equal(sent, ids[: len(sent)]):
            raise EnvError(f"turn {number}: the training row is not what was sent and sampled")
        part = slice(len(played.prompt.ids), len(sent))
        mask[part] = True
        log_probs[part] = played.generation.log_probs
        versions[part] = played.generation.policy_versions
    return Trajectory(
        input_ids=ids,
        response_mask=mask,
        log_probs=log_probs,
        policy_versions=versions,
        routes=routes_of_row(last.generation.routes, len(ids)),
        reward=float("nan"),
        finish_reason="stop",
        turn=turn,
        turn_rewards=np.array([played.turn.reward for played in turns], np.float32),
        media=without_pixels(last.prompt.media),
    )


class Form(ABC):
    """`reserve` tokens of `max_length` are kept for the answer when a first prompt has to be cut."""

    def __init__(self, config: EnvConfig, encoder: ChatEncoder, max_length: int, reserve: int):
        self._config, self._encoder = config, encoder
        self._max_length, self._max_prompt = max_length, max_length - reserve

    @abstractmethod
    def prompt(self, scene: Scene) -> Prompt | None:
        """The prompt of the next turn; None if there is no room for it."""

    def rows(self, turns: Sequence[PlayedTurn]) -> list[Trajectory]:
        """Training rows, with tokens and turn rewards only. Raises EnvError when what was sampled is not what they
        hold."""
        return [_row([played], number) for number, played in enumerate(turns)]


class TrajectoryForm(Form):
    """One row per episode: the whole conversation, trained on every answer."""

    def prompt(self, scene: Scene) -> Prompt | None:
        content, pictures = self._content(scene)
        if not scene.turns:
            first = self._encoder.expanded(self._encoder.start(_messages(self._config, content)), pictures)
            return _fitted(first.ids, self._max_prompt, first.media)
        last = scene.turns[-1]
        more = self._encoder.expanded(self._encoder.follow_up(last.generation.token_ids, content), pictures)
        before = np.concatenate([last.prompt.ids, last.generation.token_ids])
        ids = np.concatenate([before, more.ids]).astype(np.int32)
        shown = (*last.prompt.media, *(each.moved(len(before)) for each in more.media))
        return Prompt(ids, media=shown) if len(ids) < self._max_length else None

    def rows(self, turns: Sequence[PlayedTurn]) -> list[Trajectory]:
        return [_row(turns)]

    def _content(self, scene: Scene) -> tuple[Content, list[Picture]]:
        """The user's message of this turn, and the pictures in the order in which it shows them."""
        values, parts = scene.values(), scene.observation.parts
        if not scene.observation.pictures:
            return fill(self._config.template, values), []
        text = fill(self._config.template, values | dict.fromkeys(OBSERVATIONS, OBSERVATION))
        first, *others = text.split(OBSERVATION)
        shown: list[Part] = [first]
        for words in others:
            shown += [*parts, words]
        return _merged(shown), [part for part in shown if isinstance(part, Picture)]


def _merged(parts: Sequence[Part]) -> list[dict[str, str]]:
    merged: list[dict[str, str]] = []
    for part in parts:
        if isinstance(part, Picture):
            merged.append({"type": "image"})
        elif part and merged and merged[-1]["type"] == "text":
            merged[-1] = {"type": "text", "text": merged[-1]["text"] + part}
        elif part:
            merged.append({"type": "text", "text": part})
    return merged


def without_pixels(shown: Media) -> Media:
    """The same for a row: who computes with it decodes its pictures, which are small as files."""
    return tuple(replace(each, picture=replace(each.picture, pixels=None)) for each in shown)


class StepForm(Form):
    """One row per turn. Its prompt shows the last `history_length` turns as text, and the present observation."""

    def prompt(self, scene: Scene) -> Prompt | None:
        """The history gives way, oldest first, when the prompt is too long."""
        shows_history = "history" in fields_of(self._config.template)
        window = min(self._config.history_length, len(scene.turns)) if shows_history else 0
        shown = window
        while True:
            ids = self._encoder.start(_messages(self._config, self._text(scene, shown)))
            if len(ids) <= self._max_prompt:
                return Prompt(ids, is_cut=shown < window)
            if shown == 0:
                return _fitted(ids, self._max_prompt)
            shown -= 1

    def history(self, turns: Sequence[PlayedTurn], first: int) -> str:
        """Return the text of `{history}` for past turns, the first of which is number `first` of the episode."""
        return "\n".join(
            f"[Step {first + i}, observation: {p.turn.observation}, answer: {self._encoder.as_words(p.turn.response)}]"
            for i, p in enumerate(turns)
        )

    def _text(self, scene: Scene, shown: int) -> str:
        past = len(scene.turns) - shown
        history = self.history(scene.turns[past:], past + 1)
        return fill(self._config.template, scene.values() | {"history": history, "history_length": shown})


class StepConcatForm(StepForm):
    """One row per turn. Its prompt shows the observations of the last `history_length` turns as they were, and the
    present one; what was answered is not shown."""

    def history(self, turns: Sequence[PlayedTurn], first: int) -> str:
        return "\n".join(played.turn.observation for played in turns)


class NativeForm(Form):
    """One row per turn. Its prompt is the conversation that the environment keeps, through the chat template."""

    def prompt(self, scene: Scene) -> Prompt | None:
        assert scene.observation.conversation is not None
        ids = self._encoder.conversation(scene.observation.conversation)
        if not scene.turns:
            return _fitted(ids, self._max_prompt)
        return Prompt(ids) if len(ids) < self._max_length else None


FORMS: Mapping[str, type[Form]] = {
    TRAJECTORY: TrajectoryForm,
    VL_TRAJECTORY: TrajectoryForm,
    STEP: StepForm,
    STEP_CONCAT: StepConcatForm,
    AGENT_NATIVE: NativeForm,
}


def state_key(observation: str) -> int:
    """The same number for the same observation, in any process."""
    return zlib.crc32(observation.encode()) + 1


def _messages(config: EnvConfig, content: Content) -> Messages:
    system = [("system", config.agent_system_template)] if config.agent_system_template else []
    return [*system, ("user", content)]


def _fitted(ids: np.ndarray, room: int, shown: Media = ()) -> Prompt:
    """A prompt that is too long keeps its end. Raises EnvError where that would cut a picture, or lose one."""
    surplus = len(ids) - max(room, 1)
    if surplus <= 0:
        return Prompt(ids, media=shown)
    kept = cut_media(shown, 0, surplus, len(ids))
    if kept is None:
        raise EnvError(
            f"the first prompt has {len(ids)} tokens with its pictures, and there is room for {room}. Raise "
            "sequence_length, or lower actor_train.data_args.image_max_pixels"
        )
    return Prompt(ids[surplus:], is_cut=True, media=kept)
