"""Scores from files: means of several, cosines of embeddings, and errors."""

from pathlib import Path

import numpy as np
import pytest

from bcls.evaluation import scores as fits
from bcls.evaluation.scores import load_embeddings, load_similarity
from tests.evaluation.factories import add_image_without_captions, make_data, make_scores, make_split


@pytest.fixture
def split(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make_split(tmp_path / "data")


@pytest.fixture(params=[1, 25, 1 << 22], ids=["a row", "two rows", "whole"])
def block(request, monkeypatch):
    """Blocks that are smaller than a row, that do not divide the matrix, and that hold it all."""
    monkeypatch.setattr(fits, "BLOCK", request.param)


def save(name, array, **more):
    if name.endswith(".npz"):
        np.savez(name, x=array, **more)
    else:
        np.save(name, array)
    return name


def test_one_file_is_used_as_it_is(split, block):
    scores = make_scores(dtype=np.float64)
    loaded = load_similarity([save("a.npy", scores)], split)
    assert isinstance(loaded, np.memmap)
    assert loaded.dtype == np.float64
    assert np.array_equal(loaded, scores)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("dtypes", [("f4", "f4", "f4"), ("f2", "f4", "i1"), ("f4", "f8", "f4"), (">f4", "f4", "i8")])
def test_the_mean_of_several(split, dtypes):
    several = [(5 * make_scores(seed)).astype(dtype) for seed, dtype in enumerate(dtypes)]
    names = [save(f"{place}.npz" if place == 1 else f"{place}.npy", one) for place, one in enumerate(several)]
    loaded = load_similarity(names, split)
    wide = any(dtype in {"f8", "i8"} for dtype in dtypes)
    assert loaded.dtype == (np.float64 if wide else np.float32)
    expected = sum(one.astype(np.float64) for one in several) / 3
    np.testing.assert_allclose(loaded, expected, rtol=1e-12 if wide else 1e-6, atol=1e-6)


def test_the_mean_differs_from_either(split):
    a, b = make_scores(0), make_scores(1)
    loaded = load_similarity([save("a.npy", a), save("b.npy", b)], split)
    np.testing.assert_array_equal(loaded, (a + b) / np.float32(2))
    assert np.array_equal(np.load("a.npy"), a), "the file was written to"


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((12, 6), r"expected shape \(6, 12\), .*, got \(12, 6\); it is transposed: save similarity\.T"),
        ((12, 12), r"got \(12, 12\); it repeats each image for its captions"),
        ((6, 11), r"got \(6, 11\); rows are images and columns captions"),
    ],
)
def test_other_shapes(split, shape, message):
    with pytest.raises(ValueError, match=f"`b.npy`: .*{message}"):
        load_similarity([save("a.npy", make_scores()), save("b.npy", np.zeros(shape))], split)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_raise_with_their_row(split, value):
    scores = make_scores()
    scores[4, 7] = value
    with pytest.raises(ValueError, match=f"`bad.npy`: expected finite numbers, got {value} in row 4"):
        load_similarity([save("good.npy", make_scores()), save("bad.npy", scores)], split)


def test_ids_beside_the_matrix(split):
    scores, images, captions = make_scores(), np.array(split.image_ids), [one.caption_id for one in split.captions]
    good = save("good.npz", scores, image_ids=images.astype(int), caption_ids=np.array(captions))
    assert np.array_equal(load_similarity([good], split), scores)
    other = np.array(["0", "1", "2", "x", "y", "3"])
    with pytest.raises(
        ValueError, match=r"image_ids of the split's 6 images, got 2 unknown \(x, y\), 2 missing \(4, 5"
    ):
        load_similarity([save("b.npz", scores, image_ids=other)], split)
    many = np.array([f"x{n}" for n in range(12)])
    with pytest.raises(ValueError, match=r"12 unknown \(x0, x1, x2, \.\.\.\), 12 missing"):
        load_similarity([save("c.npz", scores, caption_ids=many)], split)
    with pytest.raises(ValueError, match=r"another order \(2 places differ, first '1' for '0'\)"):
        load_similarity([save("d.npz", scores, image_ids=images[[1, 0, 2, 3, 4, 5]])], split)
    with pytest.raises(ValueError, match=r"1 repeated"):
        load_similarity([save("e.npz", scores, image_ids=np.append(images, "0"))], split)


def test_lists_of_files(split):
    with pytest.raises(ValueError, match="`--a`: expected at least one file"):
        load_similarity([], split, "--a")
    with pytest.raises(ValueError, match=r"expected different files, got a\.npy more than once"):
        load_similarity(["a.npy", "b.npy", "a.npy"], split)


def test_one_name_is_no_list(split):
    with pytest.raises(ValueError, match=r"`--similarity`: expected a list of names, got 'a\.npy'; write \['a\.npy'\]"):
        load_similarity("a.npy", split)


def test_a_home_folder_in_front(split, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    scores = make_scores()
    save("a.npy", scores)
    save("b.npz", scores)
    save_folder("model")
    for name in ("~/a.npy", "~/b.npz", "~/b.npz:x"):
        assert np.array_equal(load_similarity([name], split), scores)
    assert np.array_equal(load_similarity(["~/model"], split), load_similarity(["model"], split))
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_similarity(["~nosuchuser/a.npy"], split)


def test_a_split_without_captions(tmp_path):
    make_data(tmp_path, each=0)
    add_image_without_captions(tmp_path)
    from bcls.data.dataset import open_dataset

    with pytest.raises(ValueError, match="1 images and no caption"):
        load_similarity(["a.npy"], open_dataset(tmp_path).split("test"))


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_cosines(split, dtype):
    generator = np.random.default_rng(0)
    images = (100 * generator.standard_normal((6, 5))).astype(dtype)
    texts = (10 * generator.standard_normal((12, 5))).astype(dtype)
    texts[0] = 1
    found = load_embeddings(save("i.npy", images), save("t.npy", texts), split)
    assert found.dtype == np.float32
    for n, image in enumerate(images.astype(float)):
        for c, text in enumerate(texts.astype(float)):
            assert found[n, c] == pytest.approx(image @ text / np.sqrt((image @ image) * (text @ text)), abs=1e-6)


def test_huge_and_tiny_vectors(split):
    images, texts = np.full((6, 3), 1e-200), np.full((12, 3), 1e200)
    np.testing.assert_allclose(load_embeddings(save("i.npy", images), save("t.npy", texts), split), 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("images", "texts", "message"),
    [
        ((12, 4), (6, 4), r"`i\.npy`: expected 6 rows, the split's images, got 12; the two files are exchanged"),
        ((12, 4), (12, 4), "it repeats each image for its captions"),
        ((6, 4), (11, 4), r"`t\.npy`: expected 12 rows, the split's captions, got 11"),
        ((6, 4), (12, 3), r"`t\.npy`: expected vectors of length 4, as those of the images, got 3"),
    ],
)
def test_embeddings_of_wrong_shapes(split, images, texts, message):
    with pytest.raises(ValueError, match=message):
        load_embeddings(save("i.npy", np.ones(images)), save("t.npy", np.ones(texts)), split)


def save_folder(name, seed=0, scale=1.0, **endings):
    """A model as a folder of embeddings, each array of a kind of its own; the arrays."""
    from safetensors.numpy import save_file

    generator = np.random.default_rng(seed)
    folder = Path(name)
    folder.mkdir()
    arrays = {"images": generator.standard_normal((6, 5)), "texts": generator.standard_normal((12, 5))}
    for stem, array in arrays.items():
        array = arrays[stem] = (scale * array).astype(np.float32)
        ending = endings.get(stem, ".npy")
        if ending == ".safetensors":
            save_file({"x": array}, folder / f"{stem}{ending}")
        else:
            save(str(folder / f"{stem}{ending}"), array)
    return arrays["images"], arrays["texts"]


def cosines(images, texts):
    images, texts = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (images, texts))
    return images @ texts.T


@pytest.mark.parametrize("scale", [1.0, 1e-3, 100.0])
@pytest.mark.parametrize(("images", "texts"), [(".npy", ".npy"), (".npz", ".safetensors"), (".safetensors", ".npy")])
def test_a_folder_of_embeddings_is_a_model(split, scale, images, texts):
    arrays = save_folder("model", scale=scale, images=images, texts=texts)
    np.testing.assert_allclose(load_similarity(["model"], split), cosines(*arrays), atol=1e-6)


def test_normalised_embeddings_give_the_same(split):
    arrays = save_folder("model", scale=7.0)
    long = load_similarity(["model"], split)
    for stem, array in zip(("images", "texts"), arrays, strict=True):
        np.save(f"model/{stem}.npy", array / np.linalg.norm(array, axis=1, keepdims=True))
    np.testing.assert_allclose(load_similarity(["model"], split), long, atol=1e-6)


def test_a_matrix_and_a_folder_average(split):
    arrays = save_folder("model")
    scores = make_scores()
    loaded = load_similarity([save("a.npy", scores), "model"], split)
    np.testing.assert_allclose(loaded, (scores + cosines(*arrays)) / 2, atol=1e-6)


def test_folders_that_are_no_model(split):
    Path("empty").mkdir()
    with pytest.raises(ValueError, match=r"`empty`: expected a run with a checkpoint, a saved model, or embed"):
        load_similarity(["empty"], split)
    save_folder("double")
    np.savez("double/texts.npz", np.ones((12, 5)))
    with pytest.raises(ValueError, match=r"called texts, got texts\.npy, texts\.npz; leave one of them"):
        load_similarity(["double"], split)
    save_folder("wrong")
    np.save("wrong/texts.npy", np.ones((11, 5)))
    with pytest.raises(ValueError, match=r"`wrong/texts\.npy`: expected 12 rows"):
        load_similarity(["wrong"], split)


def test_a_ranking_cut_to_its_first_items(split):
    with pytest.raises(ValueError, match=r"got \(6, 10\); .*a ranking cut to its first items is not enough"):
        load_similarity([save("a.npy", np.zeros((6, 10)))], split)
    cut = make_scores()
    cut[2, 5:] = -np.inf
    with pytest.raises(ValueError, match=r"got -inf in row 2; a ranking cut to its first items is not enough"):
        load_similarity([save("b.npy", cut)], split)


@pytest.mark.parametrize(("value", "message"), [(0.0, "a zero vector in row 3"), (np.nan, "nan in row 3")])
def test_zero_and_nan_embeddings(split, value, message):
    images, texts = np.ones((6, 4)), np.ones((12, 4))
    texts[3] = value
    with pytest.raises(ValueError, match=rf"`t\.npy`.*{message}"):
        load_embeddings(save("i.npy", images), save("t.npy", texts), split)
    images[3] = value
    with pytest.raises(ValueError, match=rf"`i\.npy`.*{message}"):
        load_embeddings(save("i.npy", images), save("t.npy", np.ones((12, 4))), split)
