"""The forms of an episode's samples: what a prompt looks like, and how turns become training rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from roll.envs.base import Conversation
from roll.envs.config import AGENT_NATIVE, STEP, STEP_CONCAT, TRAJECTORY, EnvConfig
from roll.envs.templates import OBSERVATIONS, fields_of, fill
from roll.errors import EnvError
from roll.pipeline.agentic.chat import ChatEncoder
from roll.types.rollout import Generation, Trajectory, Turn, routes_of_row


@dataclass(frozen=True)
class Prompt:
    """What the policy is asked. `is_cut`: it did not fit and lost its beginning, or part of its history."""

    ids: np.ndarray  # int32
    is_cut: bool = False


@dataclass(frozen=True)
class PlayedTurn:
    """A turn with its tokens."""

    prompt: Prompt
    generation: Generation
    turn: Turn


@dataclass(frozen=True)
class Scene:
    """What a template may show. `conversation`: of an environment that keeps it itself."""

    observation: str
    max_steps: int
    max_answer_tokens: int
    instruction: str
    turns: Sequence[PlayedTurn]
    conversation: Conversation | None = None

    def values(self) -> dict[str, object]:
        done = len(self.turns)
        return {
            **dict.fromkeys(OBSERVATIONS, self.observation),
            "turn_idx": done + 1,
            "actions_left": self.max_steps - done,
            "max_response_length": self.max_answer_tokens,
            "env_instruction": self.instruction,
            "current_step": done + 1,
            "step_count": done,
        }


class GrowingRow:
    """A training row that is put together turn by turn: what was given, then what was sampled."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._mask: list[bool] = []
        self._log_probs: list[float] = []
        self._versions: list[int] = []
        self._routes: np.ndarray | None = None  # of the last request, whose prompt was all before it

    def add(self, given: np.ndarray, generation: Generation) -> None:
        self.ids += [*given.tolist(), *generation.token_ids.tolist()]
        self._mask += [False] * len(given) + [True] * len(generation.token_ids)
        self._log_probs += [0.0] * len(given) + generation.log_probs.tolist()
        self._versions += [-1] * len(given) + generation.policy_versions.tolist()
        self._routes = generation.routes

    def finished(self, turn_rewards: Sequence[float], turn: int = 0) -> Trajectory:
        return Trajectory(
            input_ids=np.array(self.ids, np.int32),
            response_mask=np.array(self._mask, bool),
            log_probs=np.array(self._log_probs, np.float32),
            policy_versions=np.array(self._versions, np.int32),
            routes=routes_of_row(self._routes, len(self.ids)),
            reward=float("nan"),
            finish_reason="stop",
            turn=turn,
            turn_rewards=np.array(turn_rewards, np.float32),
        )


class Form(Protocol):
    def prompt(self, scene: Scene) -> Prompt | None:
        """The prompt of the next turn; None if there is no room for it."""
        ...

    def rows(self, turns: Sequence[PlayedTurn]) -> list[Trajectory]:
        """Training rows, with tokens and turn rewards only. Raises EnvError when what was sampled is not what they
        hold."""
        ...


def make_form(config: EnvConfig, encoder: ChatEncoder, max_length: int, reserve: int) -> Form:
    """`reserve` tokens of `max_length` are kept for the answer when a first prompt has to be cut."""
    return FORMS[config.env_manager_cls](config, encoder, max_length, reserve)


class TrajectoryForm:
    """One row per episode: the whole conversation, trained on every answer."""

    def __init__(self, config: EnvConfig, encoder: ChatEncoder, max_length: int, reserve: int):
        self._config, self._encoder = config, encoder
        self._max_length, self._reserve = max_length, reserve

    def prompt(self, scene: Scene) -> Prompt | None:
        text = fill(self._config.template, scene.values())
        if not scene.turns:
            return _fitted(self._encoder.start(_messages(self._config, text)), self._max_length - self._reserve)
        last = scene.turns[-1]
        more = self._encoder.follow_up(last.generation.token_ids, text)
        ids = np.concatenate([last.prompt.ids, last.generation.token_ids, more]).astype(np.int32)
        return Prompt(ids) if len(ids) < self._max_length else None

    def rows(self, turns: Sequence[PlayedTurn]) -> list[Trajectory]:
        row = GrowingRow()
        for number, played in enumerate(turns, 1):
            row.add(played.prompt.ids[len(row.ids) :], played.generation)
            sent = np.concatenate([played.prompt.ids, played.generation.token_ids])
            check_same(np.array(row.ids, np.int32), sent, f"turn {number}", self._encoder)
        return [row.finished([played.turn.reward for played in turns])]


class StepForm:
    """One row per turn. Its prompt shows the last `history_length` turns as text, and the present observation."""

    def __init__(self, config: EnvConfig, encoder: ChatEncoder, max_length: int, reserve: int):
        self._config, self._encoder = config, encoder
        self._max_prompt = max_length - reserve
        self._shows_history = "history" in fields_of(config.template)

    def prompt(self, scene: Scene) -> Prompt | None:
        """The history gives way, oldest first, when the prompt is too long."""
        window = min(self._config.history_length, len(scene.turns)) if self._shows_history else 0
        for shown in range(window, -1, -1):
            ids = self._encoder.start(_messages(self._config, self._text(scene, shown)))
            if len(ids) <= self._max_prompt:
                return Prompt(ids, is_cut=shown < window)
        return _fitted(ids, self._max_prompt)

    def rows(self, turns: Sequence[PlayedTurn]) -> list[Trajectory]:
        return one_row_per_turn(turns)

    def history(self, turns: Sequence[PlayedTurn], first: int) -> str:
        """What `{history}` shows of past turns, the first of which is number `first` of the episode."""
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


class NativeForm:
    """One row per turn. Its prompt is the conversation that the environment keeps, through the chat template."""

    def __init__(self, config: EnvConfig, encoder: ChatEncoder, max_length: int, reserve: int):
        self._encoder, self._max_length, self._reserve = encoder, max_length, reserve

    def prompt(self, scene: Scene) -> Prompt | None:
        assert scene.conversation is not None
        ids = self._encoder.conversation(scene.conversation)
        if not scene.turns:
            return _fitted(ids, self._max_length - self._reserve)
        return Prompt(ids) if len(ids) < self._max_length else None

    def rows(self, turns: Sequence[PlayedTurn]) -> list[Trajectory]:
        return one_row_per_turn(turns)


FORMS: Mapping[str, Callable[[EnvConfig, ChatEncoder, int, int], Form]] = {
    TRAJECTORY: TrajectoryForm,
    STEP: StepForm,
    STEP_CONCAT: StepConcatForm,
    AGENT_NATIVE: NativeForm,
}


def one_row_per_turn(turns: Sequence[PlayedTurn]) -> list[Trajectory]:
    rows: list[Trajectory] = []
    for played in turns:
        row = GrowingRow()
        row.add(played.prompt.ids, played.generation)
        rows.append(row.finished([played.turn.reward], turn=len(rows)))
    return rows


def state_key(observation: str) -> int:
    """The same number for the same observation, in any process."""
    return zlib.crc32(observation.encode()) + 1


def check_same(row: np.ndarray, sent: np.ndarray, what: str, encoder: ChatEncoder) -> None:
    """Raises EnvError that shows the first token in which they differ."""
    if np.array_equal(row, sent):
        return
    shared = min(len(row), len(sent))
    different = np.flatnonzero(row[:shared] != sent[:shared])
    place = int(different[0]) if len(different) else shared

    def at(ids: np.ndarray) -> str:
        return f"{ids[place]} ({encoder.show(ids[place : place + 1])!r})" if place < len(ids) else "nothing"

    raise EnvError(
        f"{what}: the training row is not what was sent and sampled. Token {place} is {at(row)} in the row and "
        f"{at(sent)} there; {len(row)} and {len(sent)} tokens."
    )


def _messages(config: EnvConfig, text: str) -> list[tuple[str, str]]:
    system = [("system", config.agent_system_template)] if config.agent_system_template else []
    return [*system, ("user", text)]


def _fitted(ids: np.ndarray, room: int) -> Prompt:
    """A prompt that is too long keeps its end."""
    return Prompt(ids) if len(ids) <= room else Prompt(ids[len(ids) - max(room, 1) :], is_cut=True)
