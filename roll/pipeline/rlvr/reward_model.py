"""Reward models: a sequence-classification head scores whole answers, after the rollout, in batches on devices."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from roll.configs.base import LARGEST_REWARD
from roll.configs.tables.sight import VisionModel
from roll.datasets.encoding import cut_of
from roll.datasets.pictures.decode import measure
from roll.datasets.pictures.expansion import cut_media, expand
from roll.datasets.templates import FORMS, Form
from roll.datasets.tool_calls import rendered
from roll.distributed.executor.clusters import RLClusters
from roll.distributed.executor.placement import Claim
from roll.distributed.executor.roles import ScoreCluster
from roll.distributed.executor.step_rows import fetched
from roll.errors import ConfigError, PictureError
from roll.models.hub import local_model
from roll.models.loading import model_config
from roll.models.tokenizer import same_tokens, tokenizer_key, tokenizer_of
from roll.models.vision.files import vision_of
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.rewards.config import RewardModelArgs
from roll.types.batch import Rows
from roll.types.media import Media, Picture, Prompt
from roll.types.rollout import Task, Trajectory, TrajectoryGroup
from roll.utils.thinking import opened

TRUNCATED = "reward_model_truncated"


@dataclass(frozen=True)
class AnswerReading:
    """How the answers of one domain are read: `args` with its label and `retemplate` settled."""

    label: int
    retemplate: bool
    max_length: int | None
    cuts_left: bool


@dataclass(frozen=True)
class Shown:
    """An answer and what precedes it, as tokens of the model, int32, and the pictures among them."""

    ids: np.ndarray
    media: Media
    was_cut: bool


@dataclass(frozen=True)
class AnswerReader:
    """Answers as one reward model is shown them. `positions`: most tokens that it can take, None: any number.
    `vision`: the model, if it sees pictures. `policy`: the one that answered."""

    role: str
    tokenizer: PreTrainedTokenizerBase
    ways: Mapping[str, AnswerReading]
    positions: int | None
    vision: VisionModel | None = None
    policy: VisionModel | None = None

    def read(self, task: Task, attempts: Sequence[Trajectory]) -> list[Shown | str]:
        """Return the input of the reward model for each attempt at a task, or the reason why it cannot be scored."""
        way = self.ways[task.domain]
        if not way.retemplate:
            return [self._cut(Prompt(attempt.input_ids, attempt.media), way) for attempt in attempts]
        try:
            pictures = self._pictures(task, attempts)
        except PictureError as error:
            return [str(error)] * len(attempts)
        texts: list[str] = []
        for attempt in attempts:
            said = opened(task.prompt_text, attempt.response_text)
            messages = [*map(dict, task.messages), {"role": "assistant", "content": said}]
            try:
                texts.append(rendered(partial(_written, self.tokenizer, [*task.tools] or None), messages))
            except (TemplateError, TypeError, ValueError) as error:
                return [f"the chat template of {self.role} fails on this prompt: {error}"] * len(attempts)
        encoded = self.tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        return [self._expanded(np.array(ids, np.int32), pictures, way) for ids in encoded["input_ids"]]

    def _pictures(self, task: Task, attempts: Sequence[Trajectory]) -> list[Picture]:
        """The pictures of the task: those that the policy saw, unless the model has tokens of another size. Then their
        headers are read. Raises PictureError."""
        if self.vision is None or not attempts:
            return []
        if self.policy is not None and self.policy.sizes.unit == self.vision.sizes.unit:
            return [shown.picture for shown in attempts[0].media]
        return [measure(source, self.vision.sizes) for source in task.pictures]

    def _expanded(self, ids: np.ndarray, pictures: Sequence[Picture], way: AnswerReading) -> Shown | str:
        if self.vision is None:
            return self._cut(Prompt(ids), way)
        try:
            return self._cut(expand(ids, pictures, self.vision), way)
        except PictureError as error:  # a response may spell the placeholder
            return f"{self.role}: {error}"

    def _cut(self, row: Prompt, way: AnswerReading) -> Shown | str:
        ids, media, length = row.ids, row.media, len(row.ids)
        was_cut = way.max_length is not None and length > way.max_length
        if way.max_length is not None and was_cut:
            begin, end = cut_of(length, way.max_length, "left" if way.cuts_left else "right")
            ids = np.concatenate([ids[:begin], ids[end:]])
            media = cut_media(row.media, begin, end, length)
            if media is None or len(media) < len(row.media):
                return (
                    f"reward_args.max_length: {way.max_length} would cut a picture from the {length} tokens for "
                    f"{self.role}. Raise it, or lower image_max_pixels"
                )
        if self.positions is not None and len(ids) > self.positions:
            return (
                f"{len(ids)} tokens are more than the {self.positions} positions of {self.role}'s model. Set "
                "reward_args.max_length"
            )
        return Shown(ids, media, was_cut) if len(ids) else f"there is no text to show to {self.role}"


def _written(tokenizer: PreTrainedTokenizerBase, tools: list[Any] | None, messages: list[dict[str, Any]]) -> str:
    return str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False))


class RewardModel:
    """Scores groups of the domains that one model serves (`late_rewards.GroupScorer`)."""

    def __init__(self, reader: AnswerReader, cluster: ScoreCluster):
        self._reader, self._cluster = reader, cluster

    @property
    def claims(self) -> Sequence[Claim]:
        return (self._cluster.weights,)

    def score(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        waiting = fetched([[t for t in group.trajectories if t.failure is None] for group in groups])
        read = [self._reader.read(group.task, some) for group, some in zip(groups, waiting, strict=True)]
        rows = [shown for some in read for shown in some if not isinstance(shown, str)]
        numbers = iter(self._cluster.row_scores(_rows(rows))) if rows else iter(())
        scored: list[TrajectoryGroup] = []
        for group, some in zip(groups, read, strict=True):
            following = iter(some)
            attempts = (
                t if t.failure is not None else self._outcome(t, group.task.domain, next(following), numbers)
                for t in group.trajectories
            )
            scored.append(replace(group, trajectories=tuple(attempts)))
        return scored

    def _outcome(
        self, attempt: Trajectory, domain: str, shown: Shown | str, numbers: Iterator[np.ndarray]
    ) -> Trajectory:
        if isinstance(shown, str):
            return attempt.failed(shown)
        score = float(next(numbers)[self._reader.ways[domain].label])
        if not math.isfinite(score) or abs(score) > LARGEST_REWARD:
            return attempt.failed(f"the model of {self._reader.role} returned {score:g}, which is not a reward")
        return attempt.rewarded(score, {TRUNCATED: float(shown.was_cut)})


class RewardModels:
    """The reward models of a run (`rlvr_pipeline.ScoringModels`)."""

    def __init__(self, config: RLVRConfig, policy: PreTrainedTokenizerBase, policy_vision: VisionModel | None):
        self._config, self._readers = config, answer_readers(config, policy, policy_vision)

    def check_pictures(self, domains: Collection[str]) -> None:
        """Do nothing: `check_shown` asks of their roles."""

    def started(self, clusters: RLClusters, run: object) -> tuple[Mapping[str, Any], Mapping[str, RewardModel]]:
        models = {role: RewardModel(self._readers[role], clusters.scorers[role]) for role in self._config.scorer_roles}
        return {}, {domain: models[role] for domain, role in self._config.scorer_of.items()}


def answer_readers(
    config: RLVRConfig, policy: PreTrainedTokenizerBase, policy_vision: VisionModel | None
) -> dict[str, AnswerReader]:
    """How each reward model of the run reads answers, by its role. Raises ConfigError before any process starts: no
    tokenizer or template, a label that the head does not have."""
    readers: dict[str, AnswerReader] = {}
    for role, worker in config.scorer_roles.items():
        name = str(worker.model_args.model_name_or_path)
        tokenizer = tokenizer_of(worker.model_args, tokenizer_key(role, worker.model_args))
        model = model_config(local_model(worker.model_args))
        num_labels = model.num_labels or 0
        vision = vision_of(worker.model_args)
        counts_alike = vision is None or policy_vision is None or vision.counts_as(policy_vision)
        reuses = counts_alike and same_tokens(policy, tokenizer) and all(map(_is_own_form, _templates(config)))
        ways = {
            domain: _way(f"rewards.{domain}.reward_args", config.rewards[domain].reward_args, num_labels, reuses)
            for domain, of in config.scorer_of.items()
            if of == role
        }
        if not tokenizer.chat_template and any(way.retemplate for way in ways.values()):
            raise ConfigError(
                f"{role}: the tokenizer of {name} has no chat template to render responses with, and its tokens are "
                "not the policy's. Add chat_template.jinja to the model's directory"
            )
        if not counts_alike and any(not way.retemplate for way in ways.values()):
            raise ConfigError(
                f"{role}.reward_args.retemplate: false, but {name} makes other tokens of a picture than the policy. "
                "Remove it"
            )
        readers[role] = AnswerReader(role, tokenizer, ways, _positions(model.get_text_config()), vision, policy_vision)
    return readers


def _way(key: str, reward_args: Mapping[str, object], num_labels: int, reuses: bool) -> AnswerReading:
    args = RewardModelArgs.model_validate(reward_args)
    label = 0 if args.label is None else args.label
    if label >= num_labels or (args.label is None and num_labels > 1):
        raise ConfigError(
            f"{key}.label: the head of the reward model has {num_labels} labels (config.json: id2label). Set it to the "
            f"one that is the reward, from 0 to {num_labels - 1}"
        )
    retemplate = not reuses if args.retemplate is None else args.retemplate
    return AnswerReading(label, retemplate, args.max_length, args.truncation_side == "left")


def _templates(config: RLVRConfig) -> list[str]:
    if config.global_template is not None:
        return [config.global_template]
    return [section.data_args.template for section in (config.actor_train, *config.validated)]


def _is_own_form(name: str) -> bool:
    """True for the tokenizer's own chat template and nothing beside it."""
    form = FORMS.get(name)
    return form is not None and form == Form(form.variables)


def _positions(model: object) -> int | None:
    """None where positions are stretched: then how far is not known."""
    rope = getattr(model, "rope_parameters", None) or {}
    if isinstance(rope, Mapping) and rope.get("rope_type", "default") != "default":
        return None
    return getattr(model, "max_position_embeddings", None)


def _rows(answers: Sequence[Shown]) -> Rows:
    lengths = np.array([len(shown.ids) for shown in answers], np.int32)
    media = tuple(shown.media for shown in answers)
    return Rows(
        lengths=lengths,
        input_ids=np.concatenate([shown.ids for shown in answers]).astype(np.int32),
        response_mask=np.ones(int(lengths.sum()), np.bool_),
        loss_weights=np.ones(len(answers), np.float32),
        media=media if any(media) else None,
    )
