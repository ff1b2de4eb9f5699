"""A model behind vLLM's server, as docs/serving.md says for CPUs, answers as transformers does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from roll.utils.network import free_port

pytest.importorskip("vllm")

LIMIT_S = 300.0
PROMPTS = ("3142", "907", "55123")
NEW_TOKENS = 12


def greedy(model: Path, prompt: str) -> str:
    tokenizer, hf = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
    turn = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    with torch.inference_mode():
        out = cast(Any, hf).generate(
            **ids, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=tokenizer.pad_token_id
        )
    return tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)


def answer(port: int, prompt: str) -> str:
    body = {"model": "mine", "messages": [{"role": "user", "content": prompt}]}
    sampling = {"temperature": 0, "max_tokens": NEW_TOKENS}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body | sampling).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT_S)
def test_a_served_model_answers_as_transformers_does(sort_data: Path, tmp_path: Path) -> None:
    model = sort_data / "model"
    port = free_port()
    words = ["--served-model-name", "mine", "--port", str(port), "--host", "127.0.0.1", "--dtype", "float32"]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *words]
    settings = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    log = tmp_path / "server.log"
    with log.open("w") as stream:
        server = subprocess.Popen(
            [*command, "--max-model-len", "64", "--enforce-eager"],
            env=os.environ | settings,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_it_serves(server, port, log)
        assert [answer(port, prompt) for prompt in PROMPTS] == [greedy(model, prompt) for prompt in PROMPTS]
    finally:
        server.terminate()
        server.wait(60)


def wait_until_it_serves(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        except OSError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
