"""Cached embeddings of captions: resume, refusals, fingerprints of encoders."""

import json
import multiprocessing
import shutil
import sys

import numpy as np
import pytest

from bcls._core.extras import MissingExtraError
from bcls.cli import main as cli
from bcls.data.dataset import open_dataset
from bcls.data.records import Caption, Content, ImageRecord, write_dataset
from bcls.labels import cache
from bcls.labels.cache import Fingerprint, cache_folder, cached_embeddings, fingerprint
from bcls.labels.encoders import load_text_encoder
from bcls.labels.relevance import relevance
from tests.stops import stops_at

pytest.importorskip("wordllama", reason='needs pip install "bcls[text]"')

TEXTS = [f"caption number {k} of a {thing}" for k, thing in enumerate(["dog", "train", "man", "house", "tree"] * 2)]


def make(folder, texts=TEXTS, splits=("train", "test")):
    images = tuple(ImageRecord(f"i{k}", splits[k % len(splits)]) for k in range(5))
    captions = tuple(Caption(f"c{k}", f"i{k // 2}", text, images[k // 2].split) for k, text in enumerate(texts))
    write_dataset(folder, Content("made", images, captions))
    return open_dataset(folder)


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "BLOCK", 3)
    return make(tmp_path / "data")


def counted(monkeypatch):
    """Texts that were encoded since."""
    seen = []
    plain = cache._embed_block
    monkeypatch.setattr(cache, "_embed_block", lambda model, texts: seen.extend(texts) or plain(model, texts))
    return seen


def test_rows_are_computed_once_and_stored_as_float16(dataset, monkeypatch):
    seen = counted(monkeypatch)
    rows = cached_embeddings(dataset, "wordllama")
    assert isinstance(rows, np.memmap)
    assert (rows.dtype, rows.shape) == (np.float16, (10, 256))
    plain = load_text_encoder("wordllama").encode(TEXTS)
    np.testing.assert_array_equal(rows, plain.astype(np.float16))
    assert seen == TEXTS
    again = cached_embeddings(dataset, "wordllama")
    assert len(seen) == 10
    assert not again.flags.writeable
    # What is read is normalized again, so float16 costs little.
    labels = relevance(rows, rows, dataset.image_of_caption)
    np.testing.assert_allclose(labels, relevance(plain, plain, dataset.image_of_caption), atol=2e-3)


def test_complete_embeddings_are_read_without_a_lock(dataset, monkeypatch):
    rows = np.array(cached_embeddings(dataset, "wordllama"))

    def read_only(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache, "lock_folder", read_only)
    np.testing.assert_array_equal(cached_embeddings(dataset, "wordllama"), rows)
    with pytest.raises(PermissionError):
        cached_embeddings(dataset, "wordllama", precision="bfloat16", overwrite=True)


def test_splits_get_their_rows(dataset, tmp_path):
    whole = np.array(cached_embeddings(dataset, "wordllama"))
    for name in ("train", "test"):
        part = dataset.split(name)
        chosen = [row for row, caption in enumerate(dataset.captions) if caption.split == name]
        np.testing.assert_array_equal(cached_embeddings(part, "wordllama"), whole[chosen])
    together = make(tmp_path / "other", splits=("test",)).split("test")
    assert isinstance(cached_embeddings(together, "wordllama"), np.memmap)


def test_interruption_loses_at_most_one_block(dataset, monkeypatch):
    seen = counted(monkeypatch)
    plain = cache._embed_block

    def stops(model, texts):
        if texts[0] == TEXTS[6]:
            raise KeyboardInterrupt
        return plain(model, texts)

    with monkeypatch.context() as patch:
        patch.setattr(cache, "_embed_block", stops)
        with pytest.raises(KeyboardInterrupt):
            cached_embeddings(dataset, "wordllama")
    folder = cache_folder(dataset.folder, "wordllama")
    assert not (folder / "manifest.json").exists()
    assert not (folder / "embeddings.npy").exists()
    seen.clear()
    rows = cached_embeddings(dataset, "wordllama")
    assert seen == TEXTS[6:]
    np.testing.assert_array_equal(rows, load_text_encoder("wordllama").encode(TEXTS).astype(np.float16))
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "embeddings.npy", "manifest.json"]


def test_interruption_before_the_manifest_loses_nothing(dataset, monkeypatch):
    plain = cache.write_whole

    def stops(path, content):
        if path.name == "manifest.json":
            raise KeyboardInterrupt
        plain(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(cache, "write_whole", stops)
        with pytest.raises(KeyboardInterrupt):
            cached_embeddings(dataset, "wordllama")
    seen = counted(monkeypatch)
    rows = cached_embeddings(dataset, "wordllama")
    assert seen == []
    np.testing.assert_array_equal(rows, load_text_encoder("wordllama").encode(TEXTS).astype(np.float16))


def test_unfinished_embeddings_of_other_captions_are_discarded(dataset, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_embed_block", stops_at(3, cache._embed_block))
        with pytest.raises(KeyboardInterrupt):
            cached_embeddings(dataset, "wordllama")
    file = dataset.folder / "captions.jsonl"
    file.write_text(file.read_text().replace("caption number 0", "another one"))
    changed = open_dataset(dataset.folder)
    rows = cached_embeddings(changed, "wordllama")
    np.testing.assert_array_equal(rows, load_text_encoder("wordllama").encode(changed.texts).astype(np.float16))


def test_other_captions_raise_with_the_command_to_run(dataset):
    cached_embeddings(dataset, "wordllama")
    file = dataset.folder / "captions.jsonl"
    file.write_text(file.read_text().replace("caption number 0", "another one"))
    changed = open_dataset(dataset.folder)
    message = r"expected embeddings with captions_sha256 .*; replace .* `bcls labels embed .* wordllama --overwrite`"
    with pytest.raises(ValueError, match=message):
        cached_embeddings(changed, "wordllama")
    rows = cached_embeddings(changed, "wordllama", overwrite=True)
    np.testing.assert_array_equal(rows, load_text_encoder("wordllama").encode(changed.texts).astype(np.float16))
    with pytest.raises(ValueError, match="`dataset`: expected captions of its folder, got caption 'c0'"):
        cached_embeddings(dataset, "wordllama")


def test_other_weights_settings_or_precision_raise(dataset, monkeypatch):
    cached_embeddings(dataset, "wordllama")
    known = fingerprint("wordllama")
    with monkeypatch.context() as patch:
        patch.setattr(cache, "fingerprint", lambda name: Fingerprint("0" * 64, known.settings))
        with pytest.raises(ValueError, match="expected embeddings with weights '0000"):
            cached_embeddings(dataset, "wordllama")
        patch.setattr(cache, "fingerprint", lambda name: Fingerprint(known.weights, "0" * 64))
        with pytest.raises(ValueError, match="expected embeddings with settings '0000"):
            cached_embeddings(dataset, "wordllama")
    with pytest.raises(ValueError, match=r"precision 'bfloat16', got 'float32'; .* --precision bfloat16 --overwrite`"):
        cached_embeddings(dataset, "wordllama", precision="bfloat16")


def test_complete_embeddings_do_not_need_the_package_of_the_encoder(dataset, monkeypatch):
    rows = np.array(cached_embeddings(dataset, "wordllama"))
    monkeypatch.setitem(sys.modules, "wordllama", None)
    np.testing.assert_array_equal(cached_embeddings(dataset, "wordllama"), rows)
    file = dataset.folder / "captions.jsonl"
    file.write_text(file.read_text().replace("caption number 0", "another one"))
    with pytest.raises(ValueError, match="expected embeddings with captions_sha256"):
        cached_embeddings(open_dataset(dataset.folder), "wordllama")
    shutil.rmtree(dataset.folder / "labels")
    with pytest.raises(MissingExtraError, match="the text encoder 'wordllama' needs wordllama"):
        cached_embeddings(dataset, "wordllama")
    assert not (dataset.folder / "labels").exists()


def test_settings_are_checked_before_anything_is_read(dataset, monkeypatch):
    monkeypatch.setattr(cache, "read_captions", None)
    for options, named in (
        ({"engine": "spark"}, "engine"),
        ({"workers": 0}, "workers"),
        ({"precision": "int8"}, "precision"),
    ):
        with pytest.raises(ValueError, match=f"^`{named}`: expected"):
            cached_embeddings(dataset, "wordllama", **options)


@pytest.mark.parametrize("lost", ["manifest.json", "embeddings.npy"])
def test_incomplete_cache_is_computed_again(dataset, lost, monkeypatch):
    cached_embeddings(dataset, "wordllama")
    (cache_folder(dataset.folder, "wordllama") / lost).unlink()
    seen = counted(monkeypatch)
    assert len(cached_embeddings(dataset, "wordllama")) == 10
    assert seen == TEXTS


def test_manifest_records_the_inputs(dataset):
    cached_embeddings(dataset, "wordllama")
    manifest = json.loads((dataset.folder / "labels" / "wordllama" / "manifest.json").read_text())
    assert (manifest["encoder"], manifest["captions"], manifest["dtype"]) == ("wordllama", 10, "float16")
    assert len(manifest["weights"]) == len(manifest["settings"]) == len(manifest["captions_sha256"]) == 64
    assert {"bcls", "torch", "wordllama"} <= manifest["versions"].keys()


def test_vectors_that_are_not_finite_raise(dataset, monkeypatch):
    class Broken:
        def encode(self, texts):
            return np.full((len(texts), 4), np.nan, dtype=np.float32)

    monkeypatch.setattr(cache, "load_text_encoder", lambda name, precision: Broken())
    with pytest.raises(ValueError, match="`encoder`: expected finite vectors, got NaN or infinity for 'caption number"):
        cached_embeddings(dataset, "wordllama")
    with pytest.raises(ValueError, match="`precision`"):
        cached_embeddings(dataset, "wordllama", precision="int8")


def embed(folder):
    return np.asarray(cached_embeddings(open_dataset(folder), "wordllama")).tobytes()


def test_two_processes_at_once(tmp_path):
    make(tmp_path / "data")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.map(embed, [tmp_path / "data"] * 2)
    assert first == second


@pytest.mark.slow
def test_both_engines_write_the_same_bytes(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason='needs pip install "bcls[jobs]"')
    monkeypatch.setattr(cache, "BLOCK", 3)  # several blocks, for both workers
    files = []
    for engine, workers in (("local", 1), ("ray", 2)):
        dataset = make(tmp_path / engine)
        cached_embeddings(dataset, "minilm", engine=engine, workers=workers)
        files.append((cache_folder(dataset.folder, "minilm") / "embeddings.npy").read_bytes())
    assert files[0] == files[1]


def test_names_of_folders(tmp_path):
    names = [cache_folder(tmp_path, name).name for name in ("minilm", "a/b", "clip:a/b", "/home/me/model", "./model")]
    assert names == ["minilm", "a--b", "clip-a--b", "home--me--model", ".--model"]


@pytest.mark.parametrize("name", ["", ".", "..", "/", "../"])
def test_names_that_cannot_be_folders_raise(tmp_path, name):
    with pytest.raises(ValueError, match="`encoder`: expected a name that can be a folder name"):
        cache_folder(tmp_path, name)


def test_command(dataset, capsys):
    arguments = ["labels", "embed", str(dataset.folder), "--encoder", "wordllama"]
    assert cli.main([*arguments, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["captions"], done["dimension"], done["precision"]) == (10, 256, "float32")
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out.startswith("10 embeddings of width 256 in ")
    file = dataset.folder / "captions.jsonl"
    file.write_text(file.read_text().replace("caption number 0", "another one"))
    assert cli.main(arguments) == 2
    message = capsys.readouterr().err
    assert "--overwrite" in message
    assert cli.main([*arguments, "--overwrite"]) == 0
    assert cli.main(["labels", "embed"]) == 2


def test_fingerprints_distinguish_models(tmp_path):
    folder, copy = tmp_path / "model", tmp_path / "copy"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer_config.json").write_text("{}")
    shutil.copytree(folder, copy)
    first = fingerprint(f"clip:{folder}")
    assert fingerprint(f"clip:{copy}") == first
    (copy / "README.md").write_text("other words")
    assert fingerprint(str(copy)) == first
    settings = copy / "tokenizer_config.json"
    settings.write_text(settings.read_text() + "\n")
    assert fingerprint(str(copy)).weights == first.weights
    assert fingerprint(str(copy)).settings != first.settings
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    assert fingerprint(str(copy)).weights != first.weights
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="`encoder`: expected weights in"):
        fingerprint(str(empty))
    with pytest.raises(ValueError, match=r"`encoder`: expected 'minilm', 'wordllama', the folder .* got 'mini'"):
        fingerprint("mini")


def test_fingerprint_of_joined_encoders_depends_on_each(tmp_path):
    folder, copy = tmp_path / "model", tmp_path / "copy"
    for path in (folder, copy):
        path.mkdir()
        (path / "model.safetensors").write_bytes(path.name.encode())
        (path / "config.json").write_text("{}")
    alone, joined = fingerprint("wordllama"), fingerprint(f"wordllama+{folder}")
    assert alone.weights != joined.weights != fingerprint(f"wordllama+{copy}").weights
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"expected weights in .*model, got none"):
        fingerprint(f"wordllama+{folder}")
