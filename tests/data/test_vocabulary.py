import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcls.data.vocabulary import SPECIALS, Vocabulary
from tests.data.made import REAL, needs_real

WORDS = (*SPECIALS, "a", "dog", ".")


def test_build_counts_and_keeps_the_order():
    vocabulary = Vocabulary.build(["Zebra ant zebra.", "ant. zebra zebra", "ant ant rare"])
    assert vocabulary.words == (*SPECIALS, "zebra", "ant")
    assert Vocabulary.build(["<unk> <unk>"], threshold=1).words == (*SPECIALS, "<", "unk", ">")
    assert Vocabulary.build([]).words == SPECIALS
    with pytest.raises(ValueError, match="`threshold`"):
        Vocabulary.build(["a"], threshold=0)


def test_encode_and_decode():
    vocabulary = Vocabulary(WORDS)
    assert vocabulary.encode("A DOG barks.") == [1, 4, 5, 3, 6, 2]
    assert vocabulary.encode("") == [1, 2]
    numbers, lengths = vocabulary.encode_all(["a dog.", "dog"])
    assert numbers.tolist() == [[1, 4, 5, 6, 2], [1, 5, 2, 0, 0]]
    assert lengths.tolist() == [5, 3]
    assert vocabulary.decode(numbers[1]) == "dog"
    assert vocabulary.encode_all([])[0].shape == (0, 0)
    assert vocabulary.unknown_share(["a cat", "dog ."]) == 0.25
    assert vocabulary.unknown_share([]) == 0.0
    for number in (7, -1):
        with pytest.raises(ValueError, match=f"numbers from 0 to 6, got {number}"):
            vocabulary.decode([number])


def test_the_format_on_disk(tmp_path):
    Vocabulary(WORDS).write(tmp_path / "vocab.json")
    content = json.loads((tmp_path / "vocab.json").read_text())
    assert list(content) == ["word2idx", "idx2word", "idx"]
    assert content["word2idx"]["dog"] == 5
    assert content["idx2word"]["5"] == "dog"
    assert content["idx"] == 7


@given(st.sets(st.text(min_size=1, max_size=5).filter(lambda word: word.isprintable() and word not in SPECIALS)))
def test_round_trip(tmp_path_factory, words):
    path = tmp_path_factory.mktemp("v") / "vocab.json"
    vocabulary = Vocabulary((*SPECIALS, *words))
    vocabulary.write(path)
    assert Vocabulary.read(path) == vocabulary


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", '"word2idx" with words and numbers'),
        ('{"word2idx": {}}', '"word2idx" with words and numbers'),
        ('{"word2idx": {"<pad>": 0, "<start>": 1, "<end>": 2, "<unk>": 3, "a": 5}}', "got 'a' with 5"),
        ('{"word2idx": {"<pad>": 0, "<start>": 1, "<end>": 2, "<unk>": 3, "a": "4"}}', "got 'a' with '4'"),
        ('{"word2idx": {"<pad>": 0, "<end>": 1, "<start>": 2, "<unk>": 3}}', "with the numbers 0 to 3"),
        ("{", "expected JSON"),
    ],
)
def test_other_files(tmp_path, content, message):
    (tmp_path / "vocab.json").write_text(content)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Vocabulary.read(tmp_path / "vocab.json")
    assert message in str(caught.value)
    assert "vocab.json" in str(caught.value)


def test_words_are_checked():
    with pytest.raises(ValueError, match="`words`: expected <pad>, <start>"):
        Vocabulary(("a",))
    with pytest.raises(ValueError, match="each word once, got 'a' twice"):
        Vocabulary((*SPECIALS, "a", "a"))


@needs_real
@pytest.mark.parametrize(("name", "size"), [("flickr30k/f30k", 8480), ("coco/coco", 11352)])
def test_published_files(name, size, tmp_path):
    vocabulary = Vocabulary.read(REAL / f"{name}_precomp_vocab.json")
    assert len(vocabulary) == size
    vocabulary.write(tmp_path / "vocab.json")
    assert Vocabulary.read(tmp_path / "vocab.json") == vocabulary
    assert vocabulary.decode(vocabulary.encode("A man and a dog.")) == "a man and a dog ."
