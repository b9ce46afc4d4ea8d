import threading
import time

import numpy as np
import pytest

from bcls.search.batcher import Batcher, OverloadedError


def lengths(texts):
    return np.array([[len(text)] for text in texts], dtype=np.float32)


def make(encode=lengths, **options):
    return Batcher(encode, **{"batch": 4, "waiting": 8, "timeout": 2.0, **options})


def test_an_error_for_one_text_does_not_affect_the_others():
    def picky(texts):
        if "bad" in texts:
            raise ValueError("bad text")
        return lengths(texts)

    batcher = make(picky)
    results = {}

    def ask(text):
        try:
            results[text] = batcher(text)[0]
        except ValueError as error:
            results[text] = str(error)

    threads = [threading.Thread(target=ask, args=(text,)) for text in ("a", "bad", "ccc")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batcher.close()
    assert results == {"a": 1, "bad": "bad text", "ccc": 3}


def test_the_same_text_is_encoded_once():
    seen = []
    batcher = make(lambda texts: seen.append(list(texts)) or time.sleep(0.1) or lengths(texts))
    threads = [threading.Thread(target=batcher, args=("same",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batcher.close()
    assert sum(len(texts) for texts in seen) < 3


def test_close_answers_waiting_texts_first():
    batcher = make(lambda texts: time.sleep(0.05) or lengths(texts), batch=1)
    results = []
    threads = [threading.Thread(target=lambda n=n: results.append(batcher("x" * n)[0])) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    time.sleep(0.03)
    batcher.close()
    batcher.close()
    for thread in threads:
        thread.join()
    assert sorted(results) == [1, 2, 3]
    with pytest.raises(OverloadedError, match="try again in 1 s"):
        batcher("late")


def test_texts_that_arrive_during_a_batch_share_the_next_one():
    seen, started, free = [], threading.Event(), threading.Event()

    def encode(texts):
        seen.append(sorted(texts))
        started.set()
        assert free.wait(5)
        return lengths(texts)

    batcher = make(encode)
    threads = [threading.Thread(target=batcher, args=(text,)) for text in ("first", "a", "bb", "ccc")]
    threads[0].start()
    assert started.wait(5)
    for thread in threads[1:]:
        thread.start()
    while batcher._queue.qsize() < 3:
        time.sleep(0.001)
    free.set()
    for thread in threads:
        thread.join()
    batcher.close()
    assert seen == [["first"], ["a", "bb", "ccc"]]
