import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from bcls.data.synthetic import Caption, Facts, Scene, SceneDataset, SceneObject, make_scenes
from bcls.data.synthetic.scene import BACKGROUNDS, CATEGORIES, COLOURS, SIZES


@pytest.fixture(scope="module")
def data():
    return make_scenes(400, seed=0)


def test_same_seed_gives_the_same_dataset(data):
    assert make_scenes(400, seed=0) == data


def test_an_image_does_not_depend_on_how_many_there_are(data):
    few = make_scenes(7, seed=0)
    assert few.scenes == data.scenes[:7]
    assert few.captions == data.captions[:35]


def test_another_seed_gives_other_scenes(data):
    other = make_scenes(400, seed=1)
    same = sum(one == two for one, two in zip(data.scenes, other.scenes, strict=True))
    assert same == 0
    assert other.texts != data.texts


def test_helpers(data):
    assert data.image_of_caption.dtype == np.int64
    np.testing.assert_array_equal(data.image_of_caption, np.repeat(np.arange(400), 5))
    assert data.texts[11] == data.captions[11].text


def test_every_name_occurs(data):
    objects = [one for scene in data.scenes for one in scene.objects]
    assert {scene.background for scene in data.scenes} == set(BACKGROUNDS)
    assert {one.category for one in objects} == set(CATEGORIES)
    assert {one.colour for one in objects} == set(COLOURS)
    assert {one.size for one in objects} == set(SIZES)
    assert {len(scene.objects) for scene in data.scenes} == {1, 2, 3, 4}


def test_categories_go_with_their_backgrounds_but_not_always(data):
    typical = Counter(
        one.category in BACKGROUNDS[scene.background].typical for scene in data.scenes for one in scene.objects
    )
    assert 0.6 < typical[True] / typical.total() < 0.95


def test_objects_lie_inside_the_image(data):
    for one in (one for scene in data.scenes for one in scene.objects):
        assert one.width / 2 <= one.x <= 1 - one.width / 2
        assert one.height / 2 <= one.y <= 1 - one.height / 2
        assert one.y < 0.5 or not CATEGORIES[one.category].flies


@pytest.mark.parametrize("images", [0, -3, 2.0, True, "4", None])
def test_bad_image_counts_are_refused(images):
    with pytest.raises(ValueError, match=r"`images`: expected a whole number not below 1, got .*; use at least"):
        make_scenes(images)


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(ValueError, match=r"`seed`: expected a whole number not below 0, got .*; use at least"):
        make_scenes(1, seed=seed)


def test_numpy_integers_are_integers():
    assert make_scenes(np.int32(2), seed=np.int64(5)) == make_scenes(2, seed=5)


@pytest.mark.parametrize(
    ("named", "change"),
    [
        ("category", {"category": "unicorn"}),
        ("colour", {"colour": "mauve"}),
        ("size", {"size": "vast"}),
        ("x", {"x": 1.2}),
        ("y", {"y": float("nan")}),
    ],
)
def test_impossible_objects_are_refused(named, change):
    fine = {"category": "dog", "colour": "red", "size": "small", "x": 0.5, "y": 0.5}
    SceneObject(**fine)
    with pytest.raises(ValueError, match=f"`{named}`( must|: expected) .*, got"):
        SceneObject(**fine | change)


def test_impossible_scenes_are_refused(data):
    one = SceneObject("dog", "red", "small", 0.5, 0.5)
    for objects in ((), (one,) * 5):
        with pytest.raises(ValueError, match=r"`objects`: expected 1 to 4 objects, got"):
            Scene("sea", objects)
    with pytest.raises(ValueError, match="`background`: expected one of"):
        Scene("moon", (one,))
    with pytest.raises(ValueError, match="`seed`: expected a whole number"):
        Scene("sea", (one,), seed=-1)


def test_captions_of_missing_images_are_refused(data):
    with pytest.raises(ValueError, match=r"`captions`: expected captions of the 1 scenes, got one of image 1"):
        SceneDataset(data.scenes[:1], (Caption("A room.", 1, Facts(background="room")),))


def test_importing_does_not_load_torch():
    # The processes that draw are spawned, and each would otherwise spend seconds loading what it does not need.
    check = "import sys, bcls.data.synthetic; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
