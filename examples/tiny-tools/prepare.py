"""Make a model that can call tools and prefers the wrong one. No download; a minute or two on one core.

Written under --out:
    model/         tokenizer and Qwen model, warmed up on a demonstrator that peeks more than it opens
    manifest.json  the arguments it was made with; running again with the same ones does nothing
"""

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a model this small only loses time to a second thread

import torch
from transformers import AddedToken, PreTrainedModel, PreTrainedTokenizerFast

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]
from boxes import LETTERS, use

from roll.models.tiny import build_model, build_tokenizer, save_pretrained

DEFAULT_OUT = Path("output/tiny-tools")  # where the YAML looks, unless TINY_TOOLS_DIR says otherwise
IGNORED = -100
WORDS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", '{"name": "', '", "arguments": {"',
         '": "', '"}}', "open", "peek", "box")  # fmt: skip
"""Single tokens, so that a call has nine."""
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool.function.name }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "<|im_start|>user\n<tool_response>{{ m.content }}</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for call in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS: list[Any] = [{"type": "function", "function": {"name": name}} for name in ("open", "peek")]


@dataclass(frozen=True)
class Settings:
    """Everything the written files depend on. The demonstrator's chances: what is left is for the wrong box."""

    seed: int = 0
    steps: int = 240
    batch_size: int = 64
    learning_rate: float = 3e-3
    peeks: float = 0.60
    guesses: float = 0.30
    opens: float = 0.05


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = build_tokenizer()
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in WORDS])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def episode(chance: random.Random, settings: Settings) -> list[dict]:
    """A conversation of the demonstrator."""
    digits = {letter: str(chance.randrange(10)) for letter in LETTERS}
    box, what = chance.choice(LETTERS), chance.random()
    messages: list[dict] = [{"role": "user", "content": f"box {box}?"}]
    if what >= settings.guesses:
        name = "peek" if what < settings.guesses + settings.peeks else "open"
        chosen = box if what < settings.guesses + settings.peeks + settings.opens else chance.choice(LETTERS)
        function = {"name": name, "arguments": {"box": chosen}}
        result = use(digits, name, function["arguments"])
        messages.append({"role": "assistant", "content": "", "tool_calls": [{"function": function}]})
        messages.append({"role": "tool", "content": result})
        if result != "?":
            return [*messages, {"role": "assistant", "content": result}]
    return [*messages, {"role": "assistant", "content": str(chance.randrange(10))}]


def encoded(tokenizer: PreTrainedTokenizerFast, messages: list[dict]) -> tuple[list[int], list[int]]:
    """Ids, and the labels: those of the assistant's turns, up to their ends."""
    ids: list[int] = []
    labels: list[int] = []
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        asked, told = (
            str(
                tokenizer.apply_chat_template(messages[:until], tools=TOOLS, tokenize=False, add_generation_prompt=asks)
            )
            for until, asks in ((place, True), (place + 1, False))
        )
        given = tokenizer.encode(asked[len(tokenizer.decode(ids)) :], add_special_tokens=False)
        said = tokenizer.encode(told[len(asked) :].removesuffix("\n"), add_special_tokens=False)
        ids, labels = [*ids, *given, *said], [*labels, *[IGNORED] * len(given), *said]
    return ids, labels


def warm_up(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, settings: Settings) -> float:
    """Supervised steps in place; returns the last loss. A causal model needs no attention mask for right padding.
    Half of the demonstrations open a box whatever the chances are, learnt from the result on: they teach to read it."""
    chance = random.Random(f"demonstrations {settings.seed}")
    known: dict[str, tuple[list[int], list[int]]] = {}  # there are not many conversations

    def row(settings: Settings) -> tuple[list[int], list[int]]:
        messages = episode(chance, settings)
        text = json.dumps(messages)
        if text not in known:
            known[text] = encoded(tokenizer, messages)
        return known[text]

    reader = Settings(peeks=0.0, guesses=0.0, opens=0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.01)
    loss = torch.tensor(0.0)
    model.train()
    for step in range(settings.steps):
        rate = min(1.0, (step + 1) / 20, (settings.steps - step) / (0.3 * settings.steps))
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * rate
        rows = [row(settings) for _ in range(settings.batch_size // 2)]
        for _ in range(settings.batch_size // 2):
            ids, labels = row(reader)
            rows.append((ids, [*[IGNORED] * (len(ids) - 2), *labels[-2:]]))
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows])
        labels = torch.tensor([labels + [IGNORED] * (longest - len(labels)) for _, labels in rows])
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0 or step + 1 == settings.steps:
            print(f"   warm-up {step + 1}/{settings.steps}, loss {loss.item():.3f}", flush=True)
    model.eval()
    return loss.item()


def prepare(out: Path, settings: Settings) -> bool:
    """Fill `out`; False where it already holds what these settings make. The manifest comes last: half is not done."""
    manifest = out / "manifest.json"
    if manifest.is_file() and json.loads(manifest.read_text(encoding="utf-8")) == asdict(settings):
        return False
    manifest.unlink(missing_ok=True)
    shutil.rmtree(out / "model", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    model = build_model(tokenizer, num_kv_heads=2, seed=settings.seed)
    warm_up(model, tokenizer, settings)
    save_pretrained(out / "model", model, tokenizer)
    manifest.write_text(json.dumps(asdict(settings), indent=2) + "\n", encoding="utf-8")
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Prepare the tiny tools: tokenizer and warmed-up model.")
    defaults = Settings()
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder to fill")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    given = parser.parse_args(arguments)
    started = time.perf_counter()
    torch.set_num_threads(1)
    if prepare(given.out, Settings(seed=given.seed)):
        print(f"   written to {given.out} in {time.perf_counter() - started:.0f} s", flush=True)
    else:
        print(f"   {given.out} is already prepared with these settings", flush=True)


if __name__ == "__main__":
    main()
