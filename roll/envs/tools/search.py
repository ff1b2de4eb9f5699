"""Finding texts by words: BM25 over a corpus that fits into memory."""

import functools
import json
import math
import re
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from roll.envs.questions import load_rows
from roll.envs.tools.base import Tool, ToolError
from roll.errors import EnvError

WORD = re.compile(r"\w+")
K1, B = 1.2, 0.75  # Lucene's


@dataclass(frozen=True)
class Document:
    title: str
    text: str


def search_terms(text: str) -> list[str]:
    return WORD.findall(text.lower())


class Bm25:
    """Robertson and Zaragoza, The Probabilistic Relevance Framework (2009), with Lucene's idf, which is never negative:
    ln(1 + (N - n + .5) / (n + .5)) for a word in n of N texts."""

    def __init__(self, texts: Sequence[str]):
        counts = [Counter(search_terms(text)) for text in texts]
        self._lengths = [counted.total() for counted in counts]
        self._mean_length = max(1.0, sum(self._lengths) / max(1, len(texts)))
        self._places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for place, counted in enumerate(counts):
            for word, count in counted.items():
                self._places[word].append((place, count))

    def search(self, query: str, count: int) -> list[tuple[int, float]]:
        """(place, score) of the best texts that share a word with the query, best first; of equal ones the earlier."""
        scores: dict[int, float] = defaultdict(float)
        for word in search_terms(query):
            places = self._places.get(word, ())
            idf = math.log(1 + (len(self._lengths) - len(places) + 0.5) / (len(places) + 0.5))
            for place, times in places:
                length = 1 - B + B * self._lengths[place] / self._mean_length
                scores[place] += idf * times * (K1 + 1) / (times + K1 * length)
        return sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))[:count]


class Corpus:
    """Documents out of a data file: rows with `text` and perhaps `title`, or with `contents`."""

    def __init__(self, documents: Sequence[Document]):
        self._documents = documents
        self._index = Bm25([f"{document.title} {document.text}" for document in documents])

    def search(self, query: str, count: int) -> list[Document]:
        return [self._documents[place] for place, _ in self._index.search(query, count)]


@functools.lru_cache(maxsize=4)
def load_corpus(path: str) -> Corpus:
    """One per process, however many episodes search it. Raises EnvError."""
    documents: list[Document] = []
    for place, row in enumerate(load_rows(path)):
        if isinstance(row.get("contents"), str):
            documents.append(_titled(row["contents"]))
        elif isinstance(row.get("text"), str):
            documents.append(Document(str(row.get("title") or ""), row["text"]))
        else:
            needs = "it needs text (and perhaps title), or contents"
            raise EnvError(f"{path}, row {place} is no document: {needs}; it has {', '.join(row)}")
    return Corpus(documents)


def _titled(contents: str) -> Document:
    title, _, text = contents.partition("\n")
    return Document(title.strip('"'), text)


# `search`: texts that fit a query, out of a corpus in memory or from a server.


class SearchTool(Tool):
    """`corpus` is a data file whose rows have `text` and perhaps `title`, or `contents` (a title, a line end, a text);
    it is searched by BM25. `search_url` is a server that answers as Search-R1's retriever does: to {"queries": [...],
    "topk": 3, "return_scores": true} with {"result": [[{"document": {"contents": ...}}, ...]]}. `num_workers`: ROLL's
    threads of a tool; here each episode asks for itself."""

    name = "search"
    instruction = (
        "You can search: <search>your query</search> gives the texts that fit it best, as "
        "<information>...</information>."
    )
    example = "what is it"

    def __init__(
        self,
        corpus: str | None = None,
        search_url: str | None = None,
        topk: int = 3,
        timeout: float = 20.0,
        num_workers: int = 1,
    ):
        del num_workers
        if (corpus is None) == (search_url is None):
            raise EnvError("search needs either corpus (a data file) or search_url")
        if topk < 1 or timeout <= 0:
            raise EnvError(f"topk: {topk} must be 1 or more, and timeout: {timeout} above 0")
        self._corpus, self._url, self._topk, self._timeout = corpus, search_url, topk, timeout
        if corpus is not None:
            load_corpus(corpus)

    def run(self, call: str) -> str:
        if not call:
            raise ToolError("the query is empty")
        documents = load_corpus(self._corpus).search(call, self._topk) if self._corpus else self._request(call)
        shown = "\n".join(f'Doc {i}(Title: "{one.title}") {one.text}' for i, one in enumerate(documents, 1))
        return f"<information>{shown or 'nothing found'}</information>"

    def _request(self, query: str) -> list[Document]:
        """Raises EnvError: a server that does not answer is no fault of the policy's."""
        body = json.dumps({"queries": [query], "topk": self._topk, "return_scores": True}).encode()
        request = urllib.request.Request(str(self._url), body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                found = json.load(response)["result"][0][: self._topk]
            return [_titled(str(one.get("document", one)["contents"])) for one in found]
        except (urllib.error.URLError, OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise EnvError(f"search_url: {self._url} gave no documents: {type(error).__name__}: {error}") from None
