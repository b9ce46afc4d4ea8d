from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from bcls.data.synthetic import Scene, SceneObject, make_scenes, render, render_all
from bcls.data.synthetic.dataset import PAINT, SHAPES, draw_object
from bcls.data.synthetic.scene import BACKGROUNDS, CATEGORIES, COLOURS

BLANK = (1, 2, 3)


@pytest.fixture(scope="module")
def scenes():
    return make_scenes(130, seed=2).scenes


def alone(one: SceneObject, side: int = 200) -> np.ndarray:
    image = Image.new("RGB", (side, side), BLANK)
    draw_object(image, one, np.random.default_rng(0))
    return np.asarray(image)


def test_every_category_can_be_drawn():
    assert set(SHAPES) == set(CATEGORIES)
    assert set(PAINT) == set(COLOURS)


def test_same_scene_gives_the_same_bytes(scenes):
    assert render(scenes[0]).tobytes() == render(scenes[0]).tobytes()
    assert render(scenes[0]).tobytes() != render(scenes[1]).tobytes()


def test_the_drawing_seed_changes_only_accidents(scenes):
    one, other = (np.asarray(render(replace(scenes[0], seed=seed)), dtype=float) for seed in (1, 2))
    assert 0 < np.abs(one - other).mean() < 40


@pytest.mark.parametrize("size", [32, 96, 101])
def test_size_and_kind(scenes, size):
    image = render(scenes[0], size)
    assert image.size == (size, size)
    assert image.mode == "RGB"


def test_render_all_stacks_the_images_of_render(scenes):
    pixels = render_all(scenes, size=40)
    assert pixels.shape == (130, 40, 40, 3)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels[77], np.asarray(render(scenes[77], 40)))


@pytest.mark.parametrize("category", CATEGORIES)
@pytest.mark.parametrize("mirrored", [False, True])
def test_objects_fill_the_box_that_the_scene_gives_them(category, mirrored):
    one = SceneObject(category, "red", "large", 0.5, 0.5, mirrored)
    rows, columns = np.nonzero((alone(one) != BLANK).any(axis=2))
    assert (columns.max() - columns.min() + 1) / 200 == pytest.approx(one.width, abs=0.06)
    assert (rows.max() - rows.min() + 1) / 200 == pytest.approx(one.height, abs=0.06)
    assert (columns.max() + columns.min() + 1) / 400 == pytest.approx(0.5, abs=0.025)
    assert (rows.max() + rows.min() + 1) / 400 == pytest.approx(0.5, abs=0.025)


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_colour_drawn_is_the_colour_named(category):
    for colour in COLOURS:
        pixels = alone(SceneObject(category, colour, "large", 0.5, 0.5)).reshape(-1, 3).astype(float)
        pixels = pixels[(pixels != BLANK).any(axis=1)]
        apart = np.stack([np.abs(pixels - np.array(paint)).sum(axis=1) for paint in PAINT.values()])
        # Shadow and shine are of other tones, but no other named colour may cover more of the object.
        close = (apart < 60).sum(axis=1)
        assert list(PAINT)[int(close.argmax())] == colour


def test_every_object_is_mostly_visible(scenes):
    for scene in scenes:
        order = sorted(scene.objects, key=lambda one: one.y + one.height / 2)
        masks = [(alone(one, 100) != BLANK).any(axis=2) for one in order]
        for place, mask in enumerate(masks):
            covered = (
                np.any([mask & later for later in masks[place + 1 :]], axis=0) if masks[place + 1 :] else mask & False
            )
            assert covered.sum() < 0.4 * mask.sum()


def test_nearer_objects_cover_further_ones():
    bus = SceneObject("bus", "red", "large", 0.5, 0.65)
    ball = SceneObject("ball", "blue", "middle", 0.5, 0.8)
    for objects in ((bus, ball), (ball, bus)):
        red, _, blue = np.asarray(render(Scene("road", objects)))[round(0.72 * 96), 48]
        assert blue > red


def test_backgrounds_look_different():
    one = (SceneObject("ball", "red", "small", 0.5, 0.8),)
    images = render_all([Scene(name, one, seed=4) for name in BACKGROUNDS], size=48).astype(float)
    for first in range(len(images)):
        for second in range(first):
            assert np.abs(images[first] - images[second]).mean() > 5


@pytest.mark.parametrize("size", [31, 0, 96.0, None])
def test_bad_sizes_are_refused(scenes, size):
    for draw in (lambda: render(scenes[0], size), lambda: render_all(scenes, size)):
        with pytest.raises(ValueError, match=r"`size`: expected a whole number not below 32, got .*; use at least"):
            draw()


def test_no_scenes_are_refused():
    with pytest.raises(ValueError, match="`scenes`: expected at least one"):
        render_all([])
