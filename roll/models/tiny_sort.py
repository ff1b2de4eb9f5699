"""The demo's task: a model that can almost sort digits, and the data to teach it the rest. No download.

"3142" -> "<answer>1234</answer>". `prepare` writes into a folder, in half a minute on one core:
    model/         tokenizer and Qwen model, warmed up on *random permutations* of the prompt's digits: it knows the
                   format and which digits to use, and is right only by chance
    train.jsonl    prompt, ground_truth, tag
    test.jsonl     the same, with answers (digit multisets) that occur neither in training nor in the warm-up
    pairs.jsonl, test_pairs.jsonl   the same prompts with the right answer (chosen) and the digits in another order
                   (rejected)
    preferences.jsonl, test_preferences.jsonl   the same prompts and right answers beside wrong ones of every kind:
                   another order, other digits, one too many, one too few
    manifest.json  the arguments above files were made with; running again with the same ones does nothing
"""

import json
import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from roll.models.tiny import build_model, build_tokenizer, save_pretrained

logger = logging.getLogger(__name__)

HELD_OUT_FRACTION = 1 / 8
PREFERENCES_PER_PROMPT = 3
IGNORED = -100
TAG = "sort"


@dataclass(frozen=True)
class Settings:
    """Everything the written files depend on."""

    min_digits: int = 4
    max_digits: int = 4
    arch: str = "qwen2"
    num_kv_heads: int = 1
    seed: int = 0
    steps: int = 200
    batch_size: int = 128
    learning_rate: float = 2e-3
    prompts_per_length: int = 6000
    num_test: int = 512


@dataclass(frozen=True)
class Row:
    prompt: str
    ground_truth: str
    tag: str


@dataclass(frozen=True)
class Pair:
    prompt: str
    chosen: str
    rejected: str


def make_prompts(min_digits: int, max_digits: int, prompts_per_length: int, rng: random.Random) -> list[str]:
    """Distinct digit strings, up to `prompts_per_length` of each length (of three digits, only 1000 exist)."""
    prompts: list[str] = []
    for length in range(min_digits, max_digits + 1):
        if 10**length <= 2 * prompts_per_length:
            every = [f"{number:0{length}d}" for number in range(10**length)]
            prompts += rng.sample(every, min(len(every), prompts_per_length))
        else:
            chosen: dict[str, None] = {}
            while len(chosen) < prompts_per_length:
                chosen["".join(rng.choices("0123456789", k=length))] = None
            prompts += chosen
    rng.shuffle(prompts)
    return prompts


def split_by_answer(rows: Sequence[Row], num_test: int, rng: random.Random) -> tuple[list[Row], list[Row]]:
    """(train, test) without a common answer. Split by prompt, nearly every test answer would be trained on too."""
    answers = sorted({row.ground_truth for row in rows})
    rng.shuffle(answers)
    held_out = set(answers[: max(1, int(len(answers) * HELD_OUT_FRACTION))])
    train = [row for row in rows if row.ground_truth not in held_out]
    test = [row for row in rows if row.ground_truth in held_out]
    return train, test[:num_test]


def make_data(settings: Settings) -> tuple[list[Row], list[Row]]:
    """Rows for training and for testing; the same for every warm-up, and for every model of the same seed."""
    rng = random.Random(settings.seed)
    prompts = make_prompts(settings.min_digits, settings.max_digits, settings.prompts_per_length, rng)
    rows = [Row(prompt, "".join(sorted(prompt)), TAG) for prompt in prompts]
    return split_by_answer(rows, settings.num_test, rng)


def make_pairs(rows: Sequence[Row], seed: int) -> list[Pair]:
    """The right answer and a wrong order of the same digits; rows whose digits have one order only have no pair."""
    rng, pairs = random.Random(seed), []
    for row in rows:
        wrong = row.ground_truth
        while wrong == row.ground_truth and len(set(wrong)) > 1:
            wrong = "".join(rng.sample(wrong, len(wrong)))
        if wrong != row.ground_truth:
            pairs.append(Pair(row.prompt, f"<answer>{row.ground_truth}</answer>", f"<answer>{wrong}</answer>"))
    return pairs


def make_preferences(rows: Sequence[Row], seed: int, pairs_per_row: int) -> list[Pair]:
    """The right answer and wrong ones of every kind that a model comes upon when it looks for high rewards."""
    rng = random.Random(seed)
    answers = [(row, wrong_answer(row.ground_truth, rng)) for row in rows for _ in range(pairs_per_row)]
    return [Pair(row.prompt, f"<answer>{row.ground_truth}</answer>", f"<answer>{bad}</answer>") for row, bad in answers]


def wrong_answer(right: str, rng: random.Random) -> str:
    """Digits in another order, other digits in order, or one of them left out, put in, or changed into one that may be
    there already; of these half in order, which are the hardest to tell."""
    while True:
        digits, place, digit = list(right), rng.randrange(len(right)), rng.choice(right + "0123456789")
        match rng.choice(("order", "others", "less", "more", "changed", "changed")):
            case "order":
                rng.shuffle(digits)
            case "others":
                digits = sorted(rng.choices("0123456789", k=len(right)))
            case "less":
                del digits[place]
            case "more":
                digits.insert(place, digit)
            case "changed":
                digits[place] = digit
                digits = sorted(digits) if rng.random() < 0.5 else digits
        if digits != list(right):
            return "".join(digits)


class WarmUpData:
    """Supervised batches whose answer is a random permutation of the prompt's digits. Every digit is one token."""

    def __init__(self, prompts: Sequence[str], tokenizer: PreTrainedTokenizerFast, seed: int):
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
        texts = [str(tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)) for chat in chats]
        self.prompts = list(zip(tokenizer(texts)["input_ids"], tokenizer(list(prompts))["input_ids"], strict=True))
        self.before: list[int] = tokenizer("<answer>")["input_ids"]
        self.after: list[int] = tokenizer(f"</answer>{tokenizer.eos_token}")["input_ids"]
        self.pad = tokenizer.pad_token_id
        self.rng = random.Random(seed)

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Right-padded input_ids and labels [B, T]; the loss looks at the answer only."""
        rows: list[tuple[list[int], list[int]]] = []
        for prompt_ids, digit_ids in self.rng.choices(self.prompts, k=size):
            response_ids = self.before + self.rng.sample(digit_ids, len(digit_ids)) + self.after
            rows.append((prompt_ids + response_ids, [IGNORED] * len(prompt_ids) + response_ids))
        longest = max(len(ids) for ids, _ in rows)
        input_ids = torch.tensor([ids + [self.pad] * (longest - len(ids)) for ids, _ in rows])
        labels = torch.tensor([labels + [IGNORED] * (longest - len(labels)) for _, labels in rows])
        return input_ids, labels


@contextmanager
def one_thread() -> Iterator[None]:
    """A model this small only loses time to a second thread. Torch has as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def warm_up(model: PreTrainedModel, data: WarmUpData, settings: Settings, report: Callable[[str], None]) -> float:
    """Supervised steps in place; returns the last loss. A causal model needs no attention mask for right padding."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.01)
    loss = torch.tensor(0.0)
    model.train()
    for step in range(1, settings.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, step / 20)
        input_ids, labels = data.batch(settings.batch_size)
        answer = labels[:, 1:] != IGNORED  # the head only where it is trained: a third off the whole step
        hidden = model.model(input_ids=input_ids, use_cache=False).last_hidden_state[:, :-1][answer]
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden), labels[:, 1:][answer])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == settings.steps:
            report(f"warm-up {step}/{settings.steps}, loss {loss.item():.3f}")
    model.eval()
    return loss.item()


def write_jsonl(path: Path, rows: Sequence[Row | Pair]) -> None:
    path.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), encoding="utf-8")


def prepare(
    out: str | os.PathLike[str], settings: Settings | None = None, report: Callable[[str], None] = logger.info
) -> bool:
    """Fill the folder `out`; False if it already holds what these settings make. `report` gets a line now and then.

    Example: prepare("tiny-sort", report=print); roll.train("tiny-sort/model", "tiny-sort/train.jsonl", reward)
    """
    out, settings = Path(out), settings or Settings()
    manifest, newest = out / "manifest.json", out / "test_preferences.jsonl"
    if manifest.is_file() and newest.is_file() and json.loads(manifest.read_text(encoding="utf-8")) == asdict(settings):
        return False
    manifest.unlink(missing_ok=True)
    shutil.rmtree(out / "model", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)

    train, test = make_data(settings)
    write_jsonl(out / "train.jsonl", train)
    write_jsonl(out / "test.jsonl", test)
    write_jsonl(out / "pairs.jsonl", make_pairs(train, settings.seed))
    write_jsonl(out / "test_pairs.jsonl", make_pairs(test, settings.seed))
    write_jsonl(out / "preferences.jsonl", make_preferences(train, settings.seed, PREFERENCES_PER_PROMPT))
    write_jsonl(newest, make_preferences(test, settings.seed, 1))
    report(f"{len(train)} prompts to train on, {len(test)} to test with (no answer in common)")

    tokenizer = build_tokenizer()
    model = build_model(tokenizer, arch=settings.arch, num_kv_heads=settings.num_kv_heads, seed=settings.seed)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    report(f"{settings.arch} model with {num_parameters} parameters, {len(tokenizer)} tokens")
    with one_thread():
        warm_up(model, WarmUpData([row.prompt for row in train], tokenizer, settings.seed + 1), settings, report)
    save_pretrained(out / "model", model, tokenizer)

    # Last: a folder without it is not complete.
    manifest.write_text(json.dumps(asdict(settings), indent=2) + "\n", encoding="utf-8")
    return True
