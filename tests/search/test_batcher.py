import threading
import time

import numpy as np
import pytest

from bcls.search.batcher import Batcher, OverloadedError


def lengths(texts):
    return np.array([[len(text)] for text in texts], dtype=np.float32)


def make(encode=lengths, **options):
    return Batcher(encode, **{"batch": 4, "wait": 0.001, "waiting": 8, "timeout": 2.0, **options})


def test_an_error_for_one_text_does_not_affect_the_others():
    def picky(texts):
        if "bad" in texts:
            raise ValueError("bad text")
        return lengths(texts)

    batcher = make(picky, wait=0.05)
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
    batcher = make(lambda texts: seen.append(list(texts)) or time.sleep(0.1) or lengths(texts), wait=0.1)
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


def test_a_single_client_does_not_wait():
    batcher = make(lengths, wait=0.3)
    started = time.monotonic()
    for text in ("a", "bb", "ccc"):
        batcher(text)
    assert time.monotonic() - started < 0.3  # a single client is answered at once
    batcher._several = True
    started = time.monotonic()
    batcher("alone again")
    assert time.monotonic() - started >= 0.3
    started = time.monotonic()
    batcher("and now known to be")
    assert time.monotonic() - started < 0.3
    batcher.close()
