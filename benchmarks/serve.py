"""Benchmarks of the web app on the CPU: ``python -m benchmarks.serve``, with ``BCLS_DATA`` set.

The server is a separate process (``bcls serve``), the clients are threads of this one, and requests use HTTP on the
loopback address. Two parts, selected with ``--only``:

- ``latency``: milliseconds per text query with 8 concurrent clients, a different caption per query and no cache;
  alternating with the same captions through the service in this process, without HTTP.
- ``load``: many requests from more clients than the limit: every status is 200 or 503, and the server stays up.
"""

import argparse
import contextlib
import http.client
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np

from bcls.data.text_files import read_json
from bcls.search.build import IndexSettings, build_index
from bcls.search.index import open_index
from bcls.search.service import Service, ServiceSettings
from benchmarks.flickr8k import data
from benchmarks.tables import show_ratios

CLIENTS, ROUNDS = 8, 4
#: Seconds that a rejected client of the load test waits, much less than Retry-After.
PAUSE = 0.1
START = "import sys; from bcls.cli.serve import main; sys.exit(main(sys.argv[1:]))"


def captions(count):
    """Distinct captions, the first of each photo first."""
    images = read_json(data() / "dataset_flickr8k.json.gz")["images"]
    texts = [image["sentences"][turn]["raw"] for turn in range(5) for image in images]
    return list(dict.fromkeys(texts))[:count]


def index_folder(arguments, place):
    if arguments.index:
        return arguments.index
    build_index(data() / "images_224.zip", IndexSettings(out=str(place / "index")))
    return place / "index"


@contextlib.contextmanager
def server(folder, *flags):
    """Start a server; yields host and port, and its process."""
    command = [sys.executable, "-c", START, str(folder), "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            raise SystemExit("the server did not start")
        yield urlsplit(found[0]).netloc, process
    finally:
        process.terminate()
        process.wait(30)


def at_once(clients, work, items):
    """Call ``work()(item)`` for all items in several threads; returns results and seconds."""
    results, lock = [], threading.Lock()
    waiting = iter(items)

    def run():
        call = work()
        while True:
            with lock:
                item = next(waiting, None)
            if item is None:
                return
            started = time.perf_counter()
            result = call(item)
            with lock:
                results.append((result, time.perf_counter() - started))

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def over_http(address, pause=0.0):
    """A client with a persistent connection that waits for a moment after a rejection."""

    def work():
        connection = http.client.HTTPConnection(address, timeout=60)

        def call(path):
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            if answer.status == 503:
                time.sleep(pause)
            return answer.status, answer.getheader("retry-after")

        return call

    return work


def measure_latency(rows, arguments, folder):
    size = arguments.queries // ROUNDS
    texts = captions(arguments.queries + 100)
    web, alone = [], []
    quiet = ServiceSettings(cache=0, timeout=60)
    with server(folder, "--no-cache", "--timeout", "60") as (address, _), Service(folder, settings=quiet) as service:
        path = "/api/search?k=10&q={}".format
        at_once(CLIENTS, over_http(address), [path(quote(text)) for text in texts[-100:]])  # warms up
        at_once(CLIENTS, lambda: service.search, texts[-100:])
        for turn in range(ROUNDS):
            part = texts[turn * size : (turn + 1) * size]
            found = at_once(CLIENTS, over_http(address), [path(quote(text)) for text in part])
            if {status for (status, _), _ in found} != {200}:
                raise SystemExit(f"not every query was answered: {Counter(status for (status, _), _ in found)}")
            web += [1e3 * seconds for _, seconds in found]
            alone += [1e3 * seconds for _, seconds in at_once(CLIENTS, lambda: service.search, part)]
        photos = f"{service.index.photos.count():,} photos"
    for share, bar in ((50, 25), (99, 100)):
        value = float(np.percentile(web, share))
        rows.append(
            (f"text query over HTTP, {photos}, {CLIENTS} clients: p{share} ms / {bar}", value, bar, value / bar, "<= 1")
        )
    first, second = float(np.median(web)), float(np.median(alone))
    rows.append((f"p50 ms over HTTP and of the service alone, {photos}", first, second, first / second, "stated"))


def count(folder):
    index = open_index(folder)
    try:
        return index.photos.count()
    finally:
        index.close()


def measure_load(rows, arguments, folder):
    texts, photos = captions(arguments.requests), count(folder)
    kinds = [
        lambda n: f"/api/search?k=10&q={quote(texts[n % len(texts)])}",
        lambda n: f"/api/photos/{1 + n % photos}/thumbnail",
        lambda n: f"/results?q={quote(texts[n % len(texts)])}",
        lambda n: f"/api/photos/{1 + n % photos}/similar",
    ]
    paths = [kinds[n % len(kinds)](n) for n in range(arguments.requests)]
    with server(folder, "--at-once", str(arguments.at_once)) as (address, process):
        started = time.perf_counter()
        found = at_once(arguments.clients, over_http(address, PAUSE), paths)
        took = time.perf_counter() - started
        statuses = Counter(status for (status, _), _ in found)
        untold = sum(status == 503 and after is None for (status, after), _ in found)
        alive = process.poll() is None and over_http(address)()("/api/search?q=dog")[0] == 200
    wrong = arguments.requests - statuses[200] - statuses[503] + untold + (not alive)
    what = f"{arguments.requests} requests, {arguments.clients} clients, limit {arguments.at_once}"
    rows.append((f"{what}: 200 and 503", statuses[200], statuses[503], statuses[503] / arguments.requests, "stated"))
    rows.append((f"{what}: other answers, of all", wrong, arguments.requests, wrong / arguments.requests, "<= 0"))
    slowest = max(seconds for _, seconds in found)
    rows.append(
        (f"{what}, {arguments.requests / took:.0f} a second: slowest answer s / 15", slowest, 15, slowest / 15, "<= 1")
    )


PARTS = {"latency": measure_latency, "load": measure_load}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--index", help="an existing index of Flickr8k")
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--at_once", type=int, default=32)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = index_folder(arguments, Path(place))
        for part in arguments.only:
            PARTS[part](rows, arguments, folder)
    show_ratios(rows, arguments.json)


if __name__ == "__main__":
    main()
