from dataclasses import replace

import numpy as np
import pytest

from bcls.data.synthetic import Caption, Facts, Mention, Relation, Scene, SceneObject, make_scenes, true_relevance
from tests.data.synthetic.reference_relevance import reference_relevance


def score(scene: Scene, *mentions: Mention, relations=(), background=None) -> float:
    facts = Facts(tuple(mentions), tuple(relations), background)
    return float(true_relevance([scene], [Caption("", 0, facts)])[0, 0])


DOG = SceneObject("dog", "red", "large", 0.3, 0.7)
TREE = SceneObject("tree", "green", "middle", 0.7, 0.6)
SCENE = Scene("meadow", (DOG, TREE))


def dog_scene(**changes) -> Scene:
    return Scene("meadow", (replace(DOG, **changes), TREE))


@pytest.fixture(scope="module")
def data():
    return make_scenes(200, seed=3)


@pytest.fixture(scope="module")
def relevance(data):
    return true_relevance(data.scenes, data.captions)


def test_shape_type_and_range(data, relevance):
    assert relevance.shape == (200, 1000)
    assert relevance.dtype == np.float32
    assert relevance.min() >= 0.0
    assert relevance.max() <= 1.0


def test_own_captions_are_exactly_one(data, relevance):
    assert (relevance[data.image_of_caption, np.arange(1000)] == 1.0).all()


def test_equals_the_plain_transcription(data):
    scenes, captions = data.scenes[:40], data.captions[:200]
    fast = true_relevance(scenes, captions)
    slow = np.array([[reference_relevance(scene, caption.facts) for caption in captions] for scene in scenes])
    np.testing.assert_allclose(fast, slow, atol=1e-6)
    np.testing.assert_array_equal(fast == 1.0, slow == 1.0)


def test_equals_the_plain_transcription_with_four_mentions_and_two_relations():
    wide = [scene for scene in make_scenes(60, seed=9).scenes if len(scene.objects) == 4]
    relations = (Relation(0, "left of", 1), Relation(3, "below", 2))
    for one in wide:
        mentions = tuple(Mention(item.category, item.colour, "small") for item in one.objects)
        facts = Facts(mentions, relations, one.background)
        fast = true_relevance(wide, [Caption("", 0, facts)])[:, 0]
        np.testing.assert_allclose(fast, [reference_relevance(scene, facts) for scene in wide], atol=1e-6)


def test_overlap_is_rich(data, relevance):
    other = relevance[data.image_of_caption[None, :] != np.arange(200)[:, None]]
    assert 0.002 < (other == 1.0).mean() < 0.1
    assert ((other > 0.0) & (other < 1.0)).mean() > 0.3
    assert 0.1 < (other == 0.0).mean() < 0.7
    assert len(np.unique(other)) > 300


def test_equal_sentences_are_equally_true(data, relevance):
    column_of: dict[str, int] = {}
    repeats = 0
    for column, text in enumerate(data.texts):
        first = column_of.setdefault(text, column)
        repeats += first != column
        np.testing.assert_array_equal(relevance[:, column], relevance[:, first])
    assert repeats > 5


def test_colour_lowers_relevance_by_how_far_off_it_is():
    same, near, far = (score(dog_scene(colour=colour), Mention("dog", "red")) for colour in ("red", "orange", "blue"))
    assert same == 1.0
    assert near == pytest.approx(5 / 6)
    assert far == pytest.approx(4 / 6)


def test_category_lowers_relevance_by_how_far_off_it_is():
    scores = [score(dog_scene(category=seen), Mention("dog")) for seen in ("dog", "cat", "fish", "car")]
    assert scores == pytest.approx([1.0, 0.6, 0.3, 0.0])


def test_size_opposite_earns_nothing_and_middle_half():
    scores = [score(dog_scene(size=seen), Mention("dog", size="large")) for seen in ("large", "middle", "small")]
    assert scores == pytest.approx([1.0, 4.5 / 5, 4 / 5])


def test_background_lowers_relevance_by_how_far_off_it_is():
    places = ("sea", "beach", "room")
    assert [score(replace(SCENE, background=place), background="sea") for place in places] == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("kind", "place", "expected"),
    [
        ("left of", (0.54, 0.6), 1.0),
        ("left of", (0.6, 0.6), 9 / 10),
        ("left of", (0.7, 0.6), 8 / 10),
        ("right of", (0.9, 0.6), 1.0),
        ("above", (0.7, 0.39), 1.0),
        ("above", (0.7, 0.45), 9 / 10),
        ("below", (0.7, 0.81), 1.0),
        ("below", (0.7, 0.6), 8 / 10),
        ("next to", (0.4, 0.6), 1.0),
        ("next to", (0.2, 0.6), 9 / 10),
        ("next to", (0.1, 0.6), 8 / 10),
    ],
)
def test_relation_credit_depends_on_positions(kind, place, expected):
    scene = dog_scene(x=place[0], y=place[1])
    stated = [Relation(0, kind, 1)]
    assert score(scene, Mention("dog"), Mention("tree"), relations=stated) == pytest.approx(expected)


def test_colour_of_the_wrong_category_earns_nothing():
    assert score(Scene("meadow", (SceneObject("bus", "red", "middle", 0.5, 0.7),)), Mention("dog", "red")) == 0.0


def test_mentions_need_different_objects():
    twice = (Mention("dog"), Mention("dog"))
    assert score(Scene("meadow", (DOG,)), *twice) == 0.5
    assert score(Scene("meadow", (DOG, replace(DOG, x=0.8))), *twice) == 1.0


def test_best_assignment_considers_all_facts_together():
    # By colour alone the mention would go to the red dog; the relation outweighs it only for the blue one.
    blue = replace(DOG, colour="blue", x=0.95)
    scene = Scene("meadow", (DOG, blue, TREE))
    stated = [Relation(0, "right of", 1)]
    assert score(scene, Mention("dog"), Mention("tree"), relations=stated) == 1.0
    assert score(scene, Mention("dog", "red"), Mention("tree"), relations=stated) == pytest.approx(10 / 12)


def test_unstated_facts_cost_nothing():
    assert score(SCENE, Mention("tree")) == 1.0


@pytest.mark.parametrize("empty", ["scenes", "captions"])
def test_empty_input_is_refused(data, empty):
    given = {"scenes": data.scenes, "captions": data.captions, empty: []}
    with pytest.raises(ValueError, match=f"`{empty}`: expected at least one"):
        true_relevance(**given)
