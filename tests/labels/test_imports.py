"""Imports of ``bcls.labels``: light, in any order, and without torch."""

import subprocess
import sys

import pytest


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_stays_light():
    heavy = {"torch", "transformers", "sentence_transformers"}
    assert run(f"import sys, bcls.labels; print(sorted({heavy} & set(sys.modules)))") == "[]"


@pytest.mark.parametrize("first", ["bcls.labels", "bcls.labels.relevance"])
def test_relevance_is_the_function_in_any_import_order(first):
    code = f"import {first}; import bcls.labels.relevance; from bcls.labels import relevance; "
    assert run(code + "print(relevance is bcls.labels.relevance, callable(relevance))") == "True True"


def test_relevance_and_wordllama_work_without_torch(tmp_path):
    pytest.importorskip("wordllama", reason='needs pip install "bcls[text]"')
    code = f"""
import sys
sys.modules["torch"] = None
from pathlib import Path
from bcls.data.dataset import open_dataset
from bcls.data.records import Caption, ImageRecord
from bcls.data.records import Content, write_dataset
from bcls.labels import cached_embeddings, relevance
folder = Path({str(tmp_path / "data")!r})
texts = ["a dog runs", "a brown dog runs", "two trains"]
captions = tuple(Caption(f"c{{n}}", f"i{{n // 2}}", text, "train") for n, text in enumerate(texts))
write_dataset(folder, Content("made", (ImageRecord("i0", "train"), ImageRecord("i1", "train")), captions))
dataset = open_dataset(folder)
rows = cached_embeddings(dataset, "wordllama")
labels = relevance(rows, rows, dataset.image_of_caption, dataset.image_of_caption)
print(labels.shape, labels[0, :2].tolist(), bool(labels[0, 2] < 0.5))
"""
    assert run(code) == "(2, 3) [1.0, 1.0] True"


def test_wordllama_leaves_the_root_logger_alone():
    pytest.importorskip("wordllama", reason='needs pip install "bcls[text]"')
    code = """
import logging
from bcls.labels import load_text_encoder
logging.getLogger().setLevel(logging.ERROR)
load_text_encoder("wordllama")
root = logging.getLogger()
print(root.handlers, root.level == logging.ERROR)
"""
    assert run(code) == "[] True"
