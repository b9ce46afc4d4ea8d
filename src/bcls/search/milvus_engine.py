"""Vector engine in Milvus: an embedded file, a server or a cluster."""

import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import bcls.search.engine as engine
from bcls._core.errors import fail
from bcls._core.extras import require
from bcls.search.engine import IndexUnavailableError, Numbers, SearchFilter, VectorRow, Vectors

#: Rows per request; a server rejects requests of more than 64 MB.
_REQUEST = 1000
#: A server returns at most this many results.
MAX_RESULTS = 16_384
#: How long a new connection waits for a server that is still starting.
WAIT_SECONDS = 30
#: Reads see every earlier write.
_STRONG = {"consistency_level": "Strong"}
#: On a server: links of a vector in the HNSW graph, and candidates while it is built and searched.
_LINKS, _CANDIDATES = 32, 256
#: Greater than every character of a name.
_LAST = "\U0010ffff"


class MilvusEngine:
    """Vectors in a collection of Milvus; see :class:`bcls.search.Engine`.

    Search is exact in an embedded file; on a server an HNSW graph is searched. Reads see every earlier write
    (consistency level Strong).

    Args:
        uri: A file such as ``photos.db`` (needs milvus-lite), or the address of a server, ``http://host:19530``.
        collection: Name of the collection.
        dimension: D.
        read_only: Search only; the collection must exist.

    Raises:
        ValueError: There is no such file, server or collection, or its vectors have another length.
        MissingExtraError: pymilvus is not installed, or milvus-lite for a file.
    """

    def __init__(self, uri: str, collection: str, dimension: int, *, read_only: bool = False) -> None:
        self._milvus = require("pymilvus", "milvus", "the engine 'milvus'")
        # Both log the traceback of every error that they also raise.
        for name in ("pymilvus", "milvus_lite"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._uri, self._collection, self._dimension = uri, collection, dimension
        if not uri:
            fail("uri", "a file such as photos.db, or an address such as http://localhost:19530", "none", "pass --uri")
        self._remote = "://" in uri
        if not self._remote:
            require("milvus_lite", "milvus", "Milvus in a file")
            if read_only and not Path(uri).exists():
                hint = "restore it, or build the index again"
                fail("uri", "the file that the index was built with", f"no {uri}", hint)
        with self._unavailable():
            if self._connect():
                self._check_dimension()
                self._client.load_collection(collection)
            elif read_only:
                fail("uri", f"the collection {collection}", "none", "the server lost it: build the index again")
            else:
                self._create()

    def _connect(self) -> bool:
        """Connect, and wait for a server that is still starting; returns whether the collection exists."""
        end = time.monotonic() + (WAIT_SECONDS if self._remote else 0)
        noted = False
        while True:
            try:
                self._client = self._milvus.MilvusClient(self._uri)
                return bool(self._client.has_collection(self._collection))
            except self._milvus.MilvusException:
                if time.monotonic() >= end:
                    raise
                if not noted:
                    print(f"waiting up to {WAIT_SECONDS} s for Milvus at {self._uri}", file=sys.stderr, flush=True)
                    noted = True
                time.sleep(1)

    def add(self, rows: Sequence[VectorRow]) -> None:
        """Add rows, replacing rows with the same numbers."""
        for start in range(0, len(rows), _REQUEST):
            part = [
                {**row._asdict(), "vector": np.asarray(row.vector, np.float32), "words": list(row.words)}
                for row in rows[start : start + _REQUEST]
            ]
            with self._unavailable():
                self._client.upsert(self._collection, part)

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete rows."""
        for start in range(0, len(numbers), _REQUEST):
            with self._unavailable():
                self._client.delete(self._collection, ids=[int(one) for one in numbers[start : start + _REQUEST]])

    def search(self, queries: Vectors, k: int, filters: SearchFilter | None = None) -> engine.Neighbors:
        """Find the nearest rows; Milvus applies the filter."""
        queries = engine.check_queries(queries, k, self._dimension)
        if k > MAX_RESULTS:
            fail("k", f"at most {MAX_RESULTS} with Milvus", k, "request fewer results")
        with self._unavailable():
            answers = self._client.search(
                self._collection,
                data=list(queries),
                limit=k,
                filter=expression(filters or SearchFilter()),
                output_fields=["number"],  # a server calls the primary key "id", a file by its name
                search_params={"metric_type": "IP", "params": {"ef": max(_CANDIDATES, k)} if self._remote else {}},
                **_STRONG,
            )
        scores = np.full((len(queries), k), -np.inf, np.float32)
        numbers = np.full((len(queries), k), -1, np.int64)
        for row, hits in enumerate(answers):
            for column, hit in enumerate(hits):
                scores[row, column], numbers[row, column] = hit["distance"], hit["number"]
        return engine.top_k(scores, numbers, k)

    def count(self) -> int:
        """Number of rows."""
        with self._unavailable():
            counted = self._client.query(self._collection, filter="", output_fields=["count(*)"], **_STRONG)
        return int(counted[0]["count(*)"])

    def numbers(self) -> Numbers:
        """Numbers of all rows, sorted."""
        found: list[int] = []
        with self._unavailable():
            options = {"batch_size": MAX_RESULTS // 2, "output_fields": ["number"], **_STRONG}
            pages = self._client.query_iterator(self._collection, **options)
            while page := pages.next():
                found += [int(one["number"]) for one in page]
            pages.close()
        return np.unique(np.array(found, dtype=np.int64))

    def vectors(self, numbers: Sequence[int]) -> Vectors:
        """Vectors of the given rows."""
        wanted = [int(one) for one in numbers]
        found: dict[int, Any] = {}
        for start in range(0, len(wanted), _REQUEST):
            with self._unavailable():
                ids = wanted[start : start + _REQUEST]
                part = self._client.get(self._collection, ids=ids, output_fields=["number", "vector"])
            found.update((int(one["number"]), one["vector"]) for one in part)
        if missing := [number for number in wanted if number not in found]:
            fail("numbers", "rows of the index", missing[0], "it was never added, or was deleted")
        return np.array([found[one] for one in wanted], dtype=np.float32).reshape(len(wanted), self._dimension)

    def finish(self) -> None:
        """Flush the collection to storage."""
        with self._unavailable():
            self._client.flush(self._collection)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _create(self) -> None:
        kind = self._milvus.DataType
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("number", kind.INT64, is_primary=True)
        schema.add_field("vector", kind.FLOAT_VECTOR, dim=self._dimension)
        schema.add_field("date", kind.DOUBLE)
        schema.add_field("name", kind.VARCHAR, max_length=8192)
        schema.add_field("words", kind.ARRAY, element_type=kind.VARCHAR, max_capacity=4096, max_length=1024)
        index = self._client.prepare_index_params()
        # FLAT is exact in a file. The graph that a server would choose itself finds 89 % of the nearest ten of 100,000.
        graph = {"M": _LINKS, "efConstruction": _CANDIDATES} if self._remote else {}
        index.add_index("vector", index_type="HNSW" if self._remote else "FLAT", metric_type="IP", params=graph)
        self._client.create_collection(self._collection, schema=schema, index_params=index, **_STRONG)

    def _check_dimension(self) -> None:
        fields = self._client.describe_collection(self._collection)["fields"]
        found = next((int(one["params"]["dim"]) for one in fields if one["name"] == "vector"), None)
        if found != self._dimension:
            hint = "the collection belongs to another model or application: use another file or server"
            fail("uri", f"vectors of {self._dimension} numbers in {self._collection}", found, hint)

    @contextmanager
    def _unavailable(self) -> Iterator[None]:
        """Raise the client's errors as one line that contains the address."""
        try:
            yield
        except self._milvus.MilvusException as error:
            reason = " ".join(str(error.message or error).split())[:200]
            hint = "check that the server is up, or that the file is complete and no other process has it open"
            fail("uri", f"Milvus at {self._uri}", f"an error ({reason})", hint, IndexUnavailableError)


def expression(filters: SearchFilter) -> str:
    """The filter in Milvus' expression language.

    Example:
        >>> expression(SearchFilter(after=0.5, words=("dog",)))
        'date >= 0.5 and array_contains_all(words, ["dog"])'
    """
    parts = []
    if filters.after is not None:
        parts.append(f"date >= {float(filters.after)!r}")
    if filters.before is not None:
        parts.append(f"date < {float(filters.before)!r}")
    if filters.under:
        # A range and not `like`: % and _ occur in names.
        parts.append(f"name >= {_quoted(filters.under)} and name < {_quoted(filters.under + _LAST)}")
    if filters.words:
        parts.append(f"array_contains_all(words, [{', '.join(_quoted(word) for word in filters.words)}])")
    return " and ".join(parts)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
