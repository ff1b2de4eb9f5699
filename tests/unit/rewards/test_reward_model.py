"""What a reward model is shown, and what becomes of its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForSequenceClassification, AutoProcessor, PreTrainedTokenizerFast

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.tables.sight import VisionModel
from roll.datasets.pictures.decode import decode
from roll.datasets.pictures.expansion import expand
from roll.distributed.executor.blueprint import BatchLimits, Blueprint
from roll.distributed.executor.worker import ScoreWorker
from roll.errors import ConfigError
from roll.models.tiny import build_tokenizer
from roll.models.tokenizer import load_tokenizer, same_tokens
from roll.pipeline.rlvr.reward_model import AnswerReader, AnswerReading, RewardModel, answer_readers
from roll.types.batch import Rows
from roll.types.media import PictureSource
from roll.types.rollout import Generation, Task, Trajectory, TrajectoryGroup
from tests.helpers.configs import config
from tests.helpers.rollouts import attempt_here
from tests.parity.strategies import shown
from tests.unit.datasets.pictures.files import png

REUSE = AnswerReading(label=0, retemplate=False, max_length=None, cuts_left=True)
OTHER_TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '<|endoftext|>' }}{% endfor %}"


class Numbers:
    """A model whose numbers are given; remembers its rows."""

    def __init__(self, *numbers: float):
        self.numbers = np.array([[number, 10 * number] for number in numbers], np.float32)
        self.rows: list[list[int]] = []

    def row_scores(self, rows: Rows) -> np.ndarray:
        self.rows += [row.tolist() for row in np.split(rows.input_ids, np.cumsum(rows.lengths)[:-1])]
        return self.numbers[: len(rows)]


class OneProcess:
    """The real worker with its strategy, here."""

    def __init__(
        self,
        model: Path,
        strategy_class: str = "roll.distributed.strategy.hf.score:HfScoreStrategy",
        shows: bool = False,
    ):
        args = {"model_args": {"model_name_or_path": str(model), "dtype": "fp32"}}
        settings = WorkerConfig.model_validate(args)
        blueprint = Blueprint("reward", 0, 1, 0, 0, "cpu", strategy_class, settings, head="sequence")
        self.worker = ScoreWorker(replace(blueprint, shows_pictures=shows))
        self.worker.setup()

    def row_scores(self, rows: Rows) -> np.ndarray:
        return self.worker.score_rows(BatchLimits(3), rows)[0]


def group(tokenizer: PreTrainedTokenizerFast, question: str, *answers: str, domain: str = "chat") -> TrajectoryGroup:
    messages = ({"role": "user", "content": question},)
    prompt = tokenizer.apply_chat_template([dict(m) for m in messages], add_generation_prompt=True, tokenize=False)
    prompt_ids = np.array(tokenizer(str(prompt))["input_ids"], np.int32)
    task = Task(question, domain, prompt_ids, str(prompt), messages=messages)
    attempts = []
    for index, answer in enumerate(answers):
        ids = np.array(tokenizer(answer + "<|im_end|>")["input_ids"], np.int32)
        empty = np.zeros(len(ids), np.float32)
        generation = Generation(ids, empty, np.zeros(len(ids), np.int32), "stop")
        attempts.append(Trajectory.from_generation(prompt_ids, generation, math.nan, index=index, response_text=answer))
    return TrajectoryGroup(task, 7, tuple(attempts))


def reader(
    tokenizer: PreTrainedTokenizerFast, ways: dict[str, AnswerReading], positions: int | None = None
) -> AnswerReader:
    return AnswerReader("rewards.chat", tokenizer, ways, positions)


def model(reader: AnswerReader, cluster: object) -> RewardModel:
    return RewardModel(reader, cast(Any, cluster))


def test_each_answer_gets_the_number_of_its_own_row_and_of_its_domains_label(
    tiny_tokenizer: PreTrainedTokenizerFast,
) -> None:
    cluster = Numbers(0.5, -1.5, 2.5)
    first = group(tiny_tokenizer, "31", "13", "aborted", "1")
    cut = first.trajectories[1].failed("cut")
    first = replace(first, trajectories=(first.trajectories[0], cut, first.trajectories[2]))
    second = group(tiny_tokenizer, "42", "24", domain="safety")
    ways = {"chat": REUSE, "safety": replace(REUSE, label=1)}
    scored = model(reader(tiny_tokenizer, ways), cluster).score([first, second])
    assert [g.rewards.tolist() for g in scored] == [[0.5, pytest.approx(math.nan, nan_ok=True), -1.5], [25.0]]
    assert [t.failure for t in scored[0].trajectories] == [None, "cut", None]
    shown = [first.trajectories[0], first.trajectories[2], second.trajectories[0]]
    assert cluster.rows == [attempt_here(t).input_ids.tolist() for t in shown]
    assert scored[0].trajectories[0].metrics == {"reward_model_truncated": 0.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_is_a_failure_and_not_a_zero(tiny_tokenizer: PreTrainedTokenizerFast, bad: float) -> None:
    (scored,) = model(reader(tiny_tokenizer, {"chat": REUSE}), Numbers(bad, 1.0)).score(
        [group(tiny_tokenizer, "31", "13", "1")]
    )
    failed, fine = scored.trajectories
    assert failed.failure == f"the model of rewards.chat returned {bad:g}, which is not a reward"
    assert failed.finish_reason == "failed" and math.isnan(failed.reward) and fine.reward == 1.0


def test_long_answers_are_cut_where_the_settings_say_and_fail_where_the_model_has_no_room(
    tiny_tokenizer: PreTrainedTokenizerFast,
) -> None:
    answers = group(tiny_tokenizer, "31", "1234")
    whole = attempt_here(answers.trajectories[0]).input_ids.tolist()
    for cuts_left, want in ((True, whole[-6:]), (False, whole[:6])):
        cluster = Numbers(1.0)
        way = replace(REUSE, max_length=6, cuts_left=cuts_left)
        (scored,) = model(reader(tiny_tokenizer, {"chat": way}, positions=6), cluster).score([answers])
        assert cluster.rows == [want]
        assert scored.trajectories[0].metrics == {"reward_model_truncated": 1.0}
    (scored,) = model(reader(tiny_tokenizer, {"chat": REUSE}, positions=6), Numbers()).score([answers])
    assert scored.trajectories[0].failure == (
        f"{len(whole)} tokens are more than the 6 positions of rewards.chat's model. Set reward_args.max_length"
    )


def test_scores_are_those_of_hugging_face_on_the_same_texts(
    tiny_tokenizer: PreTrainedTokenizerFast, make_tiny_model_dir: Callable[..., Path]
) -> None:
    """Texts are rendered and tokenized here, one by one and unpadded; fp32, another order of sums: 1e-5."""
    directory = make_tiny_model_dir(num_labels=1, seed=3)
    own = build_tokenizer()
    own.chat_template = OTHER_TEMPLATE
    groups = [group(tiny_tokenizer, "3142", "1234", "it is 4", ""), group(tiny_tokenizer, "Left or Right", "Right")]
    retemplated = reader(own, {"chat": replace(REUSE, retemplate=True)})
    scored = model(retemplated, OneProcess(directory)).score(groups)
    theirs = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32).eval()
    for given, found in zip(groups, scored, strict=True):
        for attempt, reward in zip(given.trajectories, found.rewards, strict=True):
            question = given.task.messages[0]["content"]
            text = f"user: {question}<|endoftext|>assistant: {attempt_here(attempt).response_text}<|endoftext|>"
            with torch.no_grad():
                want = theirs(input_ids=torch.tensor([own(text)["input_ids"]])).logits
            assert reward == pytest.approx(float(want), abs=1e-5)
    assert len({round(float(r), 5) for g in scored for r in g.rewards}) == 4


def test_a_template_that_fails_on_a_prompt_fails_its_answers(tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    own = build_tokenizer()
    own.chat_template = "{{ raise_exception('two turns only') }}"
    answers = [group(tiny_tokenizer, "31", "13", "1")]
    (scored,) = model(reader(own, {"chat": replace(REUSE, retemplate=True)}), Numbers()).score(answers)
    for attempt in scored.trajectories:
        assert attempt.failure == "the chat template of rewards.chat fails on this prompt: two turns only"


def test_tokenizers_are_the_same_only_where_a_conversation_is_the_same_ids() -> None:
    one, other = build_tokenizer(), build_tokenizer()
    assert same_tokens(one, other)
    other.chat_template = OTHER_TEMPLATE
    assert not same_tokens(one, other)
    other = build_tokenizer()
    other.add_tokens(["<score>"])
    assert not same_tokens(one, other)


def readers(
    directory: Path, policy: Path | None = None, vision: VisionModel | None = None, **changes: object
) -> dict[str, AnswerReader]:
    section = {
        "reward": "reward_model",
        "strategy_args": {"strategy_name": "hf_infer"},
        "model_args": {"model_name_or_path": str(directory)},
    }
    made = config({"rewards": {"chat": {**section, **changes.pop("domain", {})}}, **changes})  # type: ignore[dict-item]
    return answer_readers(made, load_tokenizer(str(policy or directory)), vision)


def test_tokens_are_reused_where_they_are_the_models_own(make_tiny_model_dir: Callable[..., Path]) -> None:
    one, three = make_tiny_model_dir(num_labels=1), make_tiny_model_dir(num_labels=3)
    found = readers(one, policy=make_tiny_model_dir(seed=5))["rewards.chat"]
    assert found.ways == {"chat": REUSE} and found.positions == 2048
    assert readers(one, global_template="chatml")["rewards.chat"].ways["chat"].retemplate
    forced = readers(one, domain={"reward_args": {"retemplate": True, "max_length": 9, "truncation_side": "right"}})
    assert forced["rewards.chat"].ways == {"chat": AnswerReading(0, True, 9, False)}
    assert readers(three, domain={"reward_args": {"label": 2}})["rewards.chat"].ways["chat"].label == 2


@pytest.mark.parametrize(
    "num_labels, args, said", [(3, {}, "has 3 labels"), (3, {"label": 3}, "0 to 2"), (1, {"label": 1}, "1 labels")]
)
def test_a_label_that_the_head_does_not_have_is_refused_before_anything_starts(
    num_labels: int, args: dict[str, int], said: str, make_tiny_model_dir: Callable[..., Path]
) -> None:
    with pytest.raises(ConfigError, match=rf"rewards\.chat\.reward_args\.label: .*{said}"):
        readers(make_tiny_model_dir(num_labels=num_labels), domain={"reward_args": args})


# Answers to prompts with pictures.


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A policy of each of two families, and a reward model of each."""
    folder = tmp_path_factory.mktemp("models")
    found = {family: shown.save_tiny(folder / family, family) for family in ("qwen2_5_vl", "qwen3_vl")}
    return found | {f"{name}_rm": shown.with_numbers(made, folder / f"{name}_rm") for name, made in found.items()}


def seen_group(policy: Path, folder: Path, *answers: str, factor: int = 28) -> TrajectoryGroup:
    """Answers to a question about two pictures, whose sides are multiples of `factor`."""
    vision, tokenizer, sources = shown.vision(policy), load_tokenizer(str(policy)), []
    for number, (height, width) in enumerate([(2, 2), (3, 2)]):
        path = folder / f"{number}.png"
        path.write_bytes(png(height * factor, width * factor, number))
        sources.append(PictureSource("file", str(path), f"row 1, picture {number}"))
    question = {"type": "text", "text": "31"}
    messages = ({"role": "user", "content": [{"type": "image"}, question, {"type": "image"}]},)
    prompt = tokenizer.apply_chat_template([*messages], add_generation_prompt=True, tokenize=False)
    short = np.array(tokenizer(str(prompt))["input_ids"], np.int32)
    row = expand(short, [decode(source, vision.sizes) for source in sources], vision)
    task = Task("seen", "chat", short, str(prompt), pictures=tuple(sources), messages=messages)
    attempts = []
    for index, answer in enumerate(answers):
        ids = np.array(tokenizer(answer + "<|im_end|>")["input_ids"], np.int32)
        said = Generation(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), "stop")
        attempts.append(
            Trajectory.from_generation(row.ids, said, math.nan, index=index, response_text=answer, media=row.media)
        )
    return TrajectoryGroup(task, 7, tuple(attempts))


def seen_reader(models: dict[str, Path], policy: str, scorer: str) -> AnswerReader:
    return readers(models[f"{scorer}_rm"], models[policy], shown.vision(models[policy]))["rewards.chat"]


@pytest.mark.parametrize("scorer", ["qwen2_5_vl", "qwen3_vl"])
def test_pictures_are_scored_as_transformers_processor_shows_them(
    scorer: str, models: dict[str, Path], tmp_path: Path
) -> None:
    """A policy and reward models of its own family, and of one with tokens of another size, which sees pictures in its
    own sizes. The processor gets the files; fp32, another order of sums: 1e-5."""
    directory, answers = models[f"{scorer}_rm"], ("13", "it is 4")
    given = seen_group(models["qwen2_5_vl"], tmp_path, *answers, factor=shown.vision(directory).sizes.factor)
    found = seen_reader(models, "qwen2_5_vl", scorer)
    assert found.ways["chat"].retemplate is (scorer == "qwen3_vl")
    (scored,) = model(found, OneProcess(directory, shows=True)).score([given])
    theirs, processor = shown.Numbers(directory), AutoProcessor.from_pretrained(directory)
    images = [Image.open(source.place) for source in given.task.pictures]
    for answer, reward in zip(answers, scored.rewards, strict=True):
        text = given.task.prompt_text + answer + "<|im_end|>" + ("\n" if scorer == "qwen3_vl" else "")
        inputs = processor(text=[text], images=images, return_tensors="pt")
        inputs.pop("attention_mask", None)
        with torch.no_grad():
            want = theirs(**inputs)[0, -1, 0]
        assert reward == pytest.approx(float(want), abs=1e-5)


def test_a_cut_never_goes_through_a_picture(models: dict[str, Path], tmp_path: Path) -> None:
    given = seen_group(models["qwen2_5_vl"], tmp_path, "13")
    found = seen_reader(models, "qwen2_5_vl", "qwen2_5_vl")
    row = attempt_here(given.trajectories[0])
    for cuts_left, length in ((True, len(row.input_ids) - 5), (False, row.media[1].start + 2)):
        way = replace(REUSE, max_length=length, cuts_left=cuts_left)
        (scored,) = model(replace(found, ways={"chat": way}), Numbers()).score([given])
        said = str(scored.trajectories[0].failure)
        assert said.startswith(f"reward_args.max_length: {length} would cut a picture from the {len(row.input_ids)} ")
    cluster = Numbers(1.0)
    way = replace(REUSE, max_length=len(row.input_ids) - 1, cuts_left=False)
    (scored,) = model(replace(found, ways={"chat": way}), cluster).score([given])
    assert scored.rewards.tolist() == [1.0] and cluster.rows == [row.input_ids[:-1].tolist()]


def test_a_response_that_spells_a_placeholder_fails_and_no_other(models: dict[str, Path], tmp_path: Path) -> None:
    given = seen_group(models["qwen2_5_vl"], tmp_path, "<|image_pad|>", "13")
    found = seen_reader(models, "qwen2_5_vl", "qwen3_vl")
    (scored,) = model(found, Numbers(0.5)).score([given])
    first, second = scored.trajectories
    assert first.failure == "rewards.chat: the prompt has 3 placeholders for 2 pictures"
    assert second.failure is None and second.reward == 0.5


def test_tokens_of_another_size_cannot_be_reused(models: dict[str, Path]) -> None:
    policy = models["qwen2_5_vl"]
    with pytest.raises(ConfigError, match=r"retemplate: false, but .* makes other tokens of a picture"):
        readers(models["qwen3_vl_rm"], policy, shown.vision(policy), domain={"reward_args": {"retemplate": False}})
