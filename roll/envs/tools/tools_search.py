"""`search`: texts that fit a query, out of a corpus in memory or from a server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from roll.envs.tools.search import Document, load_corpus
from roll.envs.tools.tools_base import Tool, ToolError
from roll.errors import EnvError


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
        found = load_corpus(self._corpus).search(call, self._topk) if self._corpus else self._ask(call)
        shown = "\n".join(f'Doc {i}(Title: "{one.title}") {one.text}' for i, one in enumerate(found, 1))
        return f"<information>{shown or 'nothing found'}</information>"

    def _ask(self, query: str) -> list[Document]:
        """Raises EnvError: a server that does not answer is no fault of the policy's."""
        body = json.dumps({"queries": [query], "topk": self._topk, "return_scores": True}).encode()
        request = urllib.request.Request(str(self._url), body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                return [_document(one) for one in json.load(response)["result"][0]][: self._topk]
        except (urllib.error.URLError, OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise EnvError(f"search_url: {self._url} gave no documents: {type(error).__name__}: {error}") from None


def _document(found: Any) -> Document:
    contents = str(found.get("document", found)["contents"])
    title, _, text = contents.partition("\n")
    return Document(title.strip('"'), text)
