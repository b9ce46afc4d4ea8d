"""Milvus as the engine: an embedded file, a server, or a cluster, through one client."""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bcls._core.errors import fail
from bcls._core.extras import require
from bcls.search.engine import Found, IndexUnavailableError, Numbers, Row, Vectors, Where, check_queries, in_order

#: Rows of one request; a server refuses requests of more than 64 MB.
_REQUEST = 1000
#: More results than this a server does not give.
MOST = 16_384
#: Greater than every character of a name.
_LAST = "\U0010ffff"


class MilvusEngine:
    """Vectors in a collection of Milvus; see :class:`bcls.search.Engine`.

    Searches are exact in an embedded file and as the server's index makes them elsewhere. Reads see every write that
    came before (consistency level Strong).

    Args:
        uri: A file such as ``photos.db`` (needs milvus-lite), or the address of a server, ``http://host:19530``.
        collection: Name of the collection.
        dimension: D.
        read_only: Search only; the collection must be there.

    Raises:
        ValueError: There is no such file, server or collection, or the collection has vectors of another size.
        MissingExtraError: pymilvus is not installed, or milvus-lite for a file.
    """

    def __init__(self, uri: str, collection: str, dimension: int, *, read_only: bool = False) -> None:
        self._milvus = require("pymilvus", "milvus", "the engine 'milvus'")
        # Both print the traceback of every error that they also raise.
        for name in ("pymilvus", "milvus_lite"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._uri, self._collection, self._dimension = uri, collection, dimension
        if not uri:
            fail("uri", "a file such as photos.db, or an address such as http://localhost:19530", "none", "pass --uri")
        if "://" not in uri:
            require("milvus_lite", "milvus", "Milvus in a file")
            if read_only and not Path(uri).exists():
                fail(
                    "uri", "the file that the index was made with", f"no {uri}", "put it back, or make the index again"
                )
        with self._told():
            self._client = self._milvus.MilvusClient(uri)
            if self._client.has_collection(collection):
                self._check_width()
                self._client.load_collection(collection)
            elif read_only:
                fail("uri", f"the collection {collection}", "none", "the server lost it: make the index again")
            else:
                self._make()

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows, in place of those with the same numbers."""
        for start in range(0, len(rows), _REQUEST):
            part = [
                {**row._asdict(), "vector": np.asarray(row.vector, np.float32), "words": list(row.words)}
                for row in rows[start : start + _REQUEST]
            ]
            with self._told():
                self._client.upsert(self._collection, part)

    def delete(self, numbers: Sequence[int]) -> None:
        """Take rows out."""
        for start in range(0, len(numbers), _REQUEST):
            with self._told():
                self._client.delete(self._collection, ids=[int(one) for one in numbers[start : start + _REQUEST]])

    def search(self, queries: Vectors, k: int, where: Where | None = None) -> Found:
        """Find the nearest rows; the filter runs inside Milvus."""
        queries = check_queries(queries, k, self._dimension)
        if k > MOST:
            fail("k", f"at most {MOST} with Milvus", k, "ask for fewer results")
        with self._told():
            answers = self._client.search(
                self._collection,
                data=list(queries),
                limit=k,
                filter=expression(where or Where()),
                search_params={"metric_type": "IP"},
                consistency_level="Strong",
            )
        scores = np.full((len(queries), k), -np.inf, np.float32)
        numbers = np.full((len(queries), k), -1, np.int64)
        for row, hits in enumerate(answers):
            for place, hit in enumerate(hits):
                scores[row, place], numbers[row, place] = hit["distance"], hit["number"]
        return in_order(scores, numbers, k)

    def count(self) -> int:
        """How many rows there are."""
        with self._told():
            counted = self._client.query(
                self._collection, filter="", output_fields=["count(*)"], consistency_level="Strong"
            )
        return int(counted[0]["count(*)"])

    def numbers(self) -> Numbers:
        """Numbers of all rows, sorted."""
        found: list[int] = []
        with self._told():
            pages = self._client.query_iterator(
                self._collection, batch_size=MOST // 2, output_fields=["number"], consistency_level="Strong"
            )
            while page := pages.next():
                found += [int(one["number"]) for one in page]
            pages.close()
        return np.unique(np.array(found, dtype=np.int64))

    def vectors(self, numbers: Sequence[int]) -> Vectors:
        """Vectors of some rows."""
        wanted = [int(one) for one in numbers]
        found: dict[int, Any] = {}
        for start in range(0, len(wanted), _REQUEST):
            with self._told():
                part = self._client.get(
                    self._collection, ids=wanted[start : start + _REQUEST], output_fields=["number", "vector"]
                )
            found.update((int(one["number"]), one["vector"]) for one in part)
        missing = [one for one in wanted if one not in found]
        if missing:
            fail("numbers", "rows of the index", missing[0], "it was never added, or taken out")
        return np.array([found[one] for one in wanted], dtype=np.float32).reshape(len(wanted), self._dimension)

    def finish(self) -> None:
        """Have the server write what it holds in memory."""
        with self._told():
            self._client.flush(self._collection)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _make(self) -> None:
        kind = self._milvus.DataType
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("number", kind.INT64, is_primary=True)
        schema.add_field("vector", kind.FLOAT_VECTOR, dim=self._dimension)
        schema.add_field("date", kind.DOUBLE)
        schema.add_field("name", kind.VARCHAR, max_length=8192)
        schema.add_field("words", kind.ARRAY, element_type=kind.VARCHAR, max_capacity=4096, max_length=1024)
        index = self._client.prepare_index_params()
        # FLAT is exact in a file; a server chooses its own kind for its size.
        index.add_index("vector", index_type="AUTOINDEX" if "://" in self._uri else "FLAT", metric_type="IP")
        self._client.create_collection(self._collection, schema=schema, index_params=index, consistency_level="Strong")

    def _check_width(self) -> None:
        fields = self._client.describe_collection(self._collection)["fields"]
        width = next((int(one["params"]["dim"]) for one in fields if one["name"] == "vector"), None)
        if width != self._dimension:
            remedy = "the collection is of another model or of something else: use another file or server"
            fail("uri", f"vectors of {self._dimension} numbers in {self._collection}", width, remedy)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of the client as one line that names the place."""
        try:
            yield
        except self._milvus.MilvusException as error:
            reason = " ".join(str(error.message or error).split())[:200]
            remedy = "check that the server is up, or that the file is whole and no other process has it open"
            fail("uri", f"Milvus at {self._uri}", f"an error ({reason})", remedy, IndexUnavailableError)


def expression(where: Where) -> str:
    """The limits in the language of Milvus.

    Example:
        >>> expression(Where(after=0.5, words=("dog",)))
        'date >= 0.5 and array_contains_all(words, ["dog"])'
    """
    parts = []
    if where.after is not None:
        parts.append(f"date >= {float(where.after)!r}")
    if where.before is not None:
        parts.append(f"date < {float(where.before)!r}")
    if where.under:
        # A range and not `like`, whose % and _ are letters of names.
        low, high = _quoted(where.under), _quoted(where.under + _LAST)
        parts.append(f"name >= {low} and name < {high}")
    if where.words:
        parts.append(f"array_contains_all(words, [{', '.join(_quoted(word) for word in where.words)}])")
    return " and ".join(parts)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
