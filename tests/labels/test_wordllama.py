"""The packaged static vectors."""

import numpy as np
import pytest

from bcls.labels import encoders as wordllama
from bcls.labels.encoders import load_text_encoder


def test_unit_rows_each_text_once():
    told = []
    encoder = load_text_encoder("wordllama")
    rows = encoder.encode(["a dog", "two trains", "a dog"], progress=lambda done, total: told.append((done, total)))
    assert rows.shape == (3, encoder.dimension)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert (rows[0] == rows[2]).all()
    assert told == [(2, 2)]
    assert encoder.encode([]).shape == (0, 256)


def test_alike_texts_lie_close():
    rows = load_text_encoder("wordllama").encode(["a dog runs on grass", "a puppy is running", "two trains"])
    assert rows[0] @ rows[1] > 0.4 > rows[0] @ rows[2]


def test_other_weights_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(wordllama, "_WEIGHTS", tmp_path / "weights")
    with pytest.raises(ValueError, match=r"no such file; pip install .*wordllama==0\.4"):
        load_text_encoder("wordllama")
    (tmp_path / "weights").write_bytes(b"other")
    with pytest.raises(ValueError, match=r"`wordllama`: expected .* with sha256 64b47a2dc4"):
        load_text_encoder("wordllama")


def test_no_texts():
    with pytest.raises(ValueError, match="`texts`: expected a list of strings, got one string"):
        load_text_encoder("wordllama").encode("a dog")
