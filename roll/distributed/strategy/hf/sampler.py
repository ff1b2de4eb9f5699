"""A batched sampler on a Hugging Face causal language model: continuous batching with one key-value cache, in one
thread."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel

from roll.configs.tables.sight import VisionModel
from roll.distributed.strategy.engine_strategy import check_request, check_sees
from roll.distributed.strategy.hf.decoder import BatchCache, Decoder, Part
from roll.distributed.strategy.hf.exact_decoder import ExactDecoder
from roll.distributed.strategy.hf.sampling import IDLE_SLOT, SampleTable, SamplingParams, UniformStreams, draw_tokens
from roll.distributed.strategy.stop_strings import StopStrings
from roll.errors import StrategyError
from roll.models.exact.rows import ExactCache
from roll.models.vision.inputs import position_shift
from roll.types.media import Media
from roll.types.rollout import FinishReason, Generation, GenerationRequest

T = TypeVar("T")

_STEPS_BETWEEN_ADMISSIONS = 4  # while others decode; each admission costs a prefill and a copy of the cache
_MAX_IDLE_FRACTION = 0.25  # of the rows may be finished before the batch is compacted
_MAX_PREFILL_TOKENS = 16384  # in one forward pass, padding included
_NEW_COLUMNS = 256  # reserved in the cache at most; it grows by doubling beyond


class Answer(NamedTuple):
    """Finished answer; `index` is its number in the group."""

    request_id: str
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # nobody searches in it
    generation: Generation


class BatchSampler:
    """Samples one token for every sample in flight per `step`.

    The rows of the batch are left padded and end at the same column. A prompt is prefilled once and its cache
    repeated for the samples of its group. Finished rows leave the batch, waiting requests join it between two tokens.
    What a sample becomes depends only on prompt, parameters, seed and weights, up to rounding; not on the others in
    the batch.

    Weights may change between two steps, followed by `recompute_cache`; every token carries the `policy_version` of the
    weights that sampled it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        eos_token_ids: Sequence[int],
        stop_strings: StopStrings | None,
        max_model_len: int,
        max_num_seqs: int,
        tells_routes: bool = False,
        vision: VisionModel | None = None,
        exact: ExactDecoder | None = None,
    ):
        """`tells_routes`: answers come with the experts that their tokens went to. `vision`: of a model that sees.
        `exact`: of the same model, in place of a plain decoder."""
        self.policy_version = 0
        self.max_model_len = max_model_len
        self._exact = exact
        self._decoder = self._exact or Decoder(model, tells_routes, vision)
        self._vocab_size = self._decoder.vocab_size
        self._eos = frozenset(eos_token_ids)
        self._placeholders = frozenset(vision.placeholders if vision is not None else ())
        self._stop_strings = stop_strings
        self._max_num_seqs = max_num_seqs
        self._streams = UniformStreams()

        self._waiting: deque[GenerationRequest] = deque()
        self._answers: list[Answer] = []
        self._table = SampleTable()
        self._stop_classes: dict[frozenset[int], int] = {}
        self._stop_masks = np.zeros((0, self._vocab_size), bool)  # [class, token]
        self._text_classes: dict[tuple[str, ...], int] = {(): 0}
        self._text_masks = np.zeros((1, self._vocab_size), bool)
        self._steps_since_admission = 0

        self._cache: BatchCache | ExactCache | None = None
        self._slots = np.zeros(0, np.int64)  # per row of the batch; IDLE_SLOT once it is finished
        self._starts = np.zeros(0, np.int64)  # first column that is not padding
        self._next_ids = torch.zeros(0, 1, dtype=torch.int64)
        self._positions = torch.zeros(0, 1, dtype=torch.int64)
        self._mask: torch.Tensor | None = None  # additive, [B, 1, 1, columns]; None: every row sees every column
        self._knobs = SamplingParams()

    @property
    def has_work(self) -> bool:
        """True while a step would do something."""
        return bool(self._waiting or self._answers or len(self._slots))

    def check(self, request: GenerationRequest) -> None:
        """Raises StrategyError for a request that cannot be served. Changes nothing, so any thread may call it."""
        sampling = request.sampling
        check_request(request, self.max_model_len, "max_model_len")
        check_sees(request, self._decoder.vision)
        ids = [*request.prompt_ids.tolist(), *sampling.stop_token_ids]
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            raise StrategyError(
                f"request {request.request_id}: a token id is not in the model's vocabulary 0..{self._vocab_size - 1}"
            )
        if sampling.stop_strings and self._stop_strings is None:
            raise StrategyError(f"request {request.request_id}: stop_strings need a tokenizer")

    def _stops_of(self, request: GenerationRequest) -> frozenset[int]:
        """The tokens that end an answer. Behind a placeholder nothing could be computed: no picture is there."""
        sampling = request.sampling
        end_ids = frozenset() if sampling.ignore_eos else self._eos
        return frozenset(sampling.stop_token_ids) | end_ids | self._placeholders

    def submit(self, request: GenerationRequest) -> None:
        """Queues a request that passed `check`."""
        self._waiting.append(request)

    @torch.inference_mode()
    def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """Ends these requests (None: all) with what they have; `take_answers` and the next `step` return them."""
        ids = None if request_ids is None else set(request_ids)
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            if ids is None or request.request_id in ids:
                empty = Generation(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32), "abort")
                self._answers += [Answer(request.request_id, index, empty) for index in request.samples]
            else:
                self._waiting.append(request)
        for row, slot in enumerate(self._slots):
            request = self._table.requests[slot]
            if request is not None and (ids is None or request.request_id in ids):
                self._close(row, "abort")
        self._compact()

    @torch.inference_mode()
    def recompute_cache(self) -> None:
        """Keys and values of all samples in flight, anew: after a weight update, so that none of the old weights
        stay."""
        rows = np.flatnonzero(self._slots != IDLE_SLOT)
        if not len(rows):
            self._clear()
            return
        tokens = [self._cached_tokens(int(slot)) for slot in self._slots[rows]]
        order = np.argsort([len(sequence) for sequence in tokens], kind="stable")
        rows, tokens = rows[order], [tokens[number] for number in order]
        lengths = [len(sequence) for sequence in tokens]
        parts = []
        for chunk in _chunks(tokens, lengths):
            first = sum(len(part.rows) for part in parts)
            slots = self._slots[rows[first : first + len(chunk)]]
            cache, _ = self._decoder.prefill(chunk, [self._media(int(slot)) for slot in slots])
            for row, routes in enumerate(self._prefilled([len(sequence) for sequence in chunk]), first):
                self._table.routes[int(self._slots[rows[row]])] = [routes]
            parts.append(Part(cache, self._decoder.tensor(np.arange(len(chunk)))))
        self._next_ids = self._next_ids[self._decoder.tensor(rows)]
        self._rebuild(parts, self._slots[rows], np.array(lengths))

    def _cached_tokens(self, slot: int) -> np.ndarray:
        """Prompt and answer so far but for the last token, which enters the cache with the next step."""
        request, count = self._table.requests[slot], self._table.position[slot] - 1
        assert request is not None
        return np.concatenate([request.prompt_ids, self._table.tokens[slot, :count]])

    def _media(self, slot: int) -> Media:
        request = self._table.requests[slot]
        return () if request is None else request.media

    def drop_cache(self) -> None:
        """Gives the memory of all keys and values back. `recompute_cache` comes before the next step."""
        self._cache = self._mask = None

    def take_answers(self) -> list[Answer]:
        """Return the answers that have ended since the last call; a step returns them, too."""
        answers, self._answers = self._answers, []
        return answers

    @torch.inference_mode()
    def step(self) -> list[Answer]:
        """Samples one token per sample in flight (admitting what waits); returns the answers that are finished."""
        logits = self._decode() if self._cache is not None else None
        admitted = self._take_waiting()
        if admitted:
            logits = self._join(logits, admitted)
        if logits is not None:
            self._sample(logits)
            self._compact()
        return self.take_answers()

    def _decode(self) -> torch.Tensor:
        """Logits [B, V] after each row's last token, whose keys and values enter the cache."""
        assert self._cache is not None
        logits = self._decoder.decode(self._next_ids, self._positions, self._cache, self._starts, self._mask)
        routes = self._decoder.routes()
        if routes is not None:
            for row in np.flatnonzero(self._slots != IDLE_SLOT):
                self._table.routes[int(self._slots[row])].append(routes[[row]])
        self._positions += 1
        return logits

    def _take_waiting(self) -> list[GenerationRequest]:
        """The requests that join now: in order, as many as max_num_seqs has room for (none is split)."""
        num_running = int((self._slots != IDLE_SLOT).sum())
        num_waiting = sum(request.num_samples for request in self._waiting)
        self._steps_since_admission += 1
        if num_waiting < num_running and self._steps_since_admission < _STEPS_BETWEEN_ADMISSIONS:
            return []
        taken: list[GenerationRequest] = []
        while self._waiting and (num_running == 0 or num_running + self._waiting[0].num_samples <= self._max_num_seqs):
            taken.append(self._waiting.popleft())
            num_running += taken[-1].num_samples
        if taken:
            self._steps_since_admission = 0
        return taken

    def _join(self, running_logits: torch.Tensor | None, requests: list[GenerationRequest]) -> torch.Tensor:
        """Prefills the prompts, each once, and adds their samples to the batch. Logits [B, V] of all rows, old ones
        first."""
        equal: dict[tuple[bytes, str], list[GenerationRequest]] = {}  # episodes of a group begin with one prompt
        for request in sorted(requests, key=lambda request: len(request.prompt_ids)):
            key = request.prompt_ids.tobytes(), request.request_id if request.media else ""
            equal.setdefault(key, []).append(request)
        groups = list(equal.values())
        parts, logits, slots, lengths = [], [], [], []
        if self._cache is not None and running_logits is not None:
            rows = np.flatnonzero(self._slots != IDLE_SLOT)
            if len(rows):
                part = Part(self._cache, self._decoder.tensor(rows), int(self._starts[rows].min()))
                parts.append(part)
                logits.append(running_logits[part.rows])
                slots.append(self._slots[rows])
                lengths.append(self._cache.length - self._starts[rows])
        for chunk in _chunks(groups, [len(group[0].prompt_ids) for group in groups]):
            firsts = [group[0] for group in chunk]
            cache, chunk_logits = self._decoder.prefill([r.prompt_ids for r in firsts], [r.media for r in firsts])
            opened = [np.concatenate([self._open(request) for request in group]) for group in chunk]
            repeats = [len(of_group) for of_group in opened]
            rows = self._decoder.tensor(np.repeat(np.arange(len(chunk)), repeats))
            parts.append(Part(cache, rows))
            logits.append(chunk_logits[rows])
            for routes, of_group in zip(self._prefilled([len(r.prompt_ids) for r in firsts]), opened, strict=False):
                self._table.routes |= {int(slot): [routes] for slot in of_group}
            slots += opened
            lengths.append(np.repeat([len(request.prompt_ids) for request in firsts], repeats))
        self._rebuild(parts, np.concatenate(slots), np.concatenate(lengths))
        return torch.cat(logits)

    def _prefilled(self, lengths: Sequence[int]) -> Iterator[np.ndarray]:
        """Experts of the tokens of each sequence that was prefilled last (left padded), if they are reported."""
        routes = self._decoder.routes()
        if routes is not None:
            for row, length in zip(routes.reshape(len(lengths), -1, *routes.shape[1:]), lengths, strict=True):
                yield row[len(row) - length :]

    def _open(self, request: GenerationRequest) -> np.ndarray:
        sampling = request.sampling
        uniforms = [self._streams.draw(sampling.seed, index, sampling.max_new_tokens) for index in request.samples]
        stops = self._stops_of(request)
        stop_class = self._stop_classes.setdefault(stops, len(self._stop_classes))
        if stop_class == len(self._stop_masks):
            mask = np.zeros(self._vocab_size, bool)
            mask[list(stops)] = True
            self._stop_masks = np.concatenate([self._stop_masks, mask[None]])
        text_class = self._text_classes.setdefault(sampling.stop_strings, len(self._text_classes))
        if text_class == len(self._text_masks):
            assert self._stop_strings is not None
            mask = self._stop_strings.candidates(sampling.stop_strings, self._vocab_size)
            self._text_masks = np.concatenate([self._text_masks, mask[None]])
        return self._table.add(request, np.stack(uniforms), stop_class, text_class)

    def _sample(self, logits: torch.Tensor) -> None:
        """Draws a token for every row, writes it down, and closes the rows that it finishes."""
        table = self._table
        uniforms = self._decoder.tensor(table.uniforms[self._slots, table.position[self._slots]])
        if self._exact is None:
            tokens, log_probs = draw_tokens(logits, uniforms, self._knobs_now())
        else:
            tokens, _ = draw_tokens(self._exact.shown(logits), uniforms, self._knobs_now())
            log_probs = self._exact.log_probs(logits, tokens, table.temperature[self._slots])
        self._next_ids = tokens[:, None]
        if self._knobs.present_tokens is not None:
            self._knobs.present_tokens.scatter_(1, self._next_ids, True)

        rows = np.flatnonzero(self._slots != IDLE_SLOT)
        slots, drawn = self._slots[rows], tokens.cpu().numpy()[rows]
        position = table.position[slots]
        table.tokens[slots, position] = drawn
        table.log_probs[slots, position] = log_probs.cpu().numpy()[rows]
        table.versions[slots, position] = self.policy_version
        table.position[slots] = position + 1

        stopped = self._stop_masks[table.stop_class[slots], drawn]
        if len(self._text_masks) > 1:
            candidates = self._text_masks[table.text_class[slots], drawn] & ~stopped
            for number in np.flatnonzero(candidates & (position >= table.min_new_tokens[slots])):
                stopped[number] = self._completes_stop_string(int(slots[number]))
        at_limit = position + 1 >= table.max_new_tokens[slots]
        for number in np.flatnonzero(stopped | at_limit):
            self._close(int(rows[number]), "stop" if stopped[number] else "length")

    def _completes_stop_string(self, slot: int) -> bool:
        request = self._table.requests[slot]
        assert request is not None
        assert self._stop_strings is not None
        answer = self._table.tokens[slot, : self._table.position[slot]]
        return self._stop_strings.completes(request.sampling.stop_strings, answer)

    def _close(self, row: int, reason: FinishReason) -> None:
        self._answers.append(Answer(*self._table.close(int(self._slots[row]), reason)))
        self._slots[row] = IDLE_SLOT

    def _compact(self) -> None:
        """Drops finished rows, and columns that are padding in all others, once that saves more than it costs."""
        rows = np.flatnonzero(self._slots != IDLE_SLOT)
        if self._cache is None or len(rows) > (1 - _MAX_IDLE_FRACTION) * len(self._slots):
            return
        if len(rows) == 0:
            self._clear()
            return
        part = Part(self._cache, self._decoder.tensor(rows), int(self._starts[rows].min()))
        self._next_ids = self._next_ids[part.rows]
        self._rebuild([part], self._slots[rows], self._cache.length - self._starts[rows])

    def _clear(self) -> None:
        """No row is left."""
        self._cache, self._mask, self._knobs = None, None, SamplingParams()
        self._slots = self._starts = np.zeros(0, np.int64)

    def _rebuild(self, parts: Sequence[Part], slots: np.ndarray, lengths: np.ndarray) -> None:
        """A new batch of these rows: `lengths` tokens of each are in the cache."""
        table = self._table
        longest = max(part.length for part in parts)
        remaining = int((table.max_new_tokens[slots] - table.position[slots]).max())
        self._cache = self._decoder.assemble(parts, longest + min(remaining, _NEW_COLUMNS))
        self._slots, self._starts = slots, longest - lengths
        self._positions = self._decoder.tensor(lengths + self._shifts(slots))[:, None]
        self._mask = self._decoder.decode_mask(self._starts, longest + remaining)
        self._knobs = self._knobs_of(slots)

    def _shifts(self, slots: np.ndarray) -> np.ndarray:
        """How far the position of each row's next token is from its place: pictures take fewer positions than
        tokens."""
        vision = self._decoder.vision
        if vision is None:
            return np.zeros(len(slots), np.int64)
        return np.array([position_shift(self._media(int(slot)), vision) for slot in slots], np.int64)

    def _knobs_of(self, slots: np.ndarray) -> SamplingParams:
        table = self._table

        def tensor(values: np.ndarray, off: float) -> torch.Tensor | None:
            chosen = values[slots]
            return None if (chosen == off).all() else self._decoder.tensor(chosen)

        penalty = tensor(table.repetition_penalty, 1.0)
        return SamplingParams(
            temperature=tensor(table.temperature, 1.0),
            top_k=tensor(table.top_k, 0),
            top_p=tensor(table.top_p, 1.0),
            repetition_penalty=penalty,
            present_tokens=None if penalty is None else self._present_tokens(slots),
        )

    def _knobs_now(self) -> SamplingParams:
        """The knobs of this step: rows below min_new_tokens must not stop."""
        table = self._table
        early = table.position[self._slots] < table.min_new_tokens[self._slots]
        if not early.any():
            return self._knobs
        banned = self._stop_masks[table.stop_class[self._slots]] & early[:, None]
        return replace(self._knobs, banned=self._decoder.tensor(banned))

    def _present_tokens(self, slots: np.ndarray) -> torch.Tensor:
        """bool [B, V]: tokens of prompt and answer so far, of the rows with a repetition penalty."""
        present = np.zeros((len(slots), self._vocab_size), bool)
        for row, slot in enumerate(slots):
            request = self._table.requests[slot]
            if request is not None and request.sampling.repetition_penalty != 1:
                present[row, request.prompt_ids] = True
                present[row, self._table.tokens[slot, : self._table.position[slot]]] = True
        return self._decoder.tensor(present)


def _chunks(items: Sequence[T], lengths: Sequence[int]) -> Iterator[Sequence[T]]:
    """Slices of items in order of length, each of at most _MAX_PREFILL_TOKENS when padded (or one item)."""
    first = 0
    for last in range(1, len(items) + 1):
        if last == len(items) or (last + 1 - first) * lengths[last] > _MAX_PREFILL_TOKENS:
            yield items[first:last]
            first = last
