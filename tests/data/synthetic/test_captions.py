import re

import numpy as np
import pytest
from PIL import Image

from bcls.data.synthetic import Facts, Mention, Relation, make_scenes
from bcls.data.synthetic.dataset import draw_object
from bcls.data.synthetic.scene import BACKGROUNDS, CATEGORIES, COLOURS, RELATIONS, SIZES


@pytest.fixture(scope="module")
def data():
    return make_scenes(300, seed=1)


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def meanings(text: str, names: dict[str, tuple[str, ...]]) -> set[str]:
    found = words_of(text)
    return {name for name, words in names.items() if any(word.split()[-1] in found for word in words)}


def test_captions_of_an_image_differ(data):
    for image in range(300):
        own = data.texts[5 * image : 5 * image + 5]
        assert len(set(own)) == 5


def test_captions_vary_in_wording_and_facts(data):
    openings = {" ".join(words_of(text)[:2]) for text in data.texts}
    assert len(openings) > 60
    stated = {(len(c.facts.mentions), bool(c.facts.relations), c.facts.background is None) for c in data.captions}
    assert {(0, False, False), (1, False, True), (2, True, False), (2, False, True), (3, True, True)} <= stated
    used = {word for text in data.texts for word in words_of(text)}
    for category in CATEGORIES.values():
        assert {phrase.split()[-1] for phrase in category.words} <= used


def test_different_scenes_share_sentences(data):
    images_of: dict[str, set[int]] = {}
    for caption in data.captions:
        images_of.setdefault(caption.text, set()).add(caption.image)
    assert sum(len(images) > 1 for images in images_of.values()) > 10


def test_sentences_state_exactly_the_facts(data):
    nouns = {name: category.words for name, category in CATEGORIES.items()}
    for caption in data.captions:
        facts = caption.facts
        assert meanings(caption.text, nouns) == {mention.category for mention in facts.mentions}, caption.text
        assert meanings(caption.text, COLOURS) == {m.colour for m in facts.mentions} - {None}, caption.text
        assert meanings(caption.text, SIZES) == {m.size for m in facts.mentions} - {None}, caption.text
        named = {
            name
            for name, place in BACKGROUNDS.items()
            if any(phrase in caption.text.lower() for phrase in (*place.where, *place.over, *place.nouns))
        }
        assert (facts.background in named) if facts.background else not named, caption.text


def test_sentences_are_well_formed(data):
    for text in data.texts:
        assert text[0].isupper()
        assert text.endswith(".")
        assert "  " not in text
        assert not re.search(r"\b[Aa] [aeiou]", text), text
        assert not re.search(r"\b[Aa]n [^aeiou]", text), text


def drawn_centre(one) -> tuple[float, float]:
    """Where the object's pixels are, measured on a image of it alone."""
    image = Image.new("RGB", (200, 200), (1, 2, 3))
    draw_object(image, one, np.random.default_rng(0))
    rows, columns = np.nonzero((np.asarray(image) != (1, 2, 3)).any(axis=2))
    return (columns.min() + columns.max() + 1) / 400, (rows.min() + rows.max() + 1) / 400


def test_stated_relations_agree_with_the_drawn_positions(data):
    checked = dict.fromkeys(RELATIONS, 0)
    for caption in data.captions[:700]:
        objects = data.scenes[caption.image].objects
        for relation in caption.facts.relations:
            assert any(phrase in caption.text.lower() for group in RELATIONS[relation.kind] for phrase in group)
            ends = [caption.facts.mentions[end] for end in (relation.first, relation.second)]
            first, second = ([drawn_centre(o) for o in objects if matches(o, end)] for end in ends)
            agree = {
                "left of": lambda a, b: b[0] - a[0] > 0.12,
                "right of": lambda a, b: a[0] - b[0] > 0.12,
                "above": lambda a, b: b[1] - a[1] > 0.16,
                "below": lambda a, b: a[1] - b[1] > 0.16,
                "next to": lambda a, b: np.hypot(b[0] - a[0], b[1] - a[1]) < 0.44,
            }[relation.kind]
            assert any(agree(a, b) for a in first for b in second), caption
            checked[relation.kind] += 1
    assert min(checked.values()) > 5


def matches(one, mention: Mention) -> bool:
    return (
        one.category == mention.category and mention.colour in (None, one.colour) and mention.size in (None, one.size)
    )


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Mention("unicorn"), "category"),
        (lambda: Mention("dog", colour="mauve"), "colour"),
        (lambda: Mention("dog", size="middle"), "size"),
        (lambda: Relation(0, "inside", 1), "kind"),
        (lambda: Facts(), "mentions"),
        (lambda: Facts((Mention("dog"),) * 5), "mentions"),
        (lambda: Facts((Mention("dog"),), (Relation(0, "above", 1),)), "relations"),
        (lambda: Facts((Mention("dog"),), (Relation(0, "above", 0),)), "relations"),
        (lambda: Facts(background="moon"), "background"),
    ],
)
def test_impossible_facts_are_refused(make, named):
    with pytest.raises(ValueError, match=f"`{named}`.*got"):
        make()
