"""The dataset of drawn scenes: creation, drawing with Pillow, saving and loading.

A saved folder contains ``images/00000.png`` and so on; ``captions.jsonl``, one caption per line with ``image_id`` (the
file name without extension), ``caption_id``, ``text`` and ``split``; and ``scenes.jsonl``, one image per line with its
scene graph and the facts that its captions state.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from bcls._core.errors import check_choice, check_whole, fail
from bcls._core.files import beside, rename, sync_folder, sync_tree, write_whole
from bcls.data.synthetic.captions import Caption, Facts, Mention, Relation, write_captions
from bcls.data.synthetic.scene import Scene, SceneObject, sample_scene
from bcls.data.text_files import read_json_lines

SPLITS = ("train", "val", "test")
DEFAULT_SIZE = 96
# In smaller images the eyes, wheels and windows that distinguish the categories disappear.
MIN_SIZE = 32
_OVERSAMPLING = 2
_NOISE = 3.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class SceneDataset:
    """Scenes and their captions.

    Attributes:
        scenes: One scene per image.
        captions: All captions, those of image 0 first.
    """

    scenes: tuple[Scene, ...]
    captions: tuple[Caption, ...]

    def __post_init__(self) -> None:
        for caption in self.captions:
            if not 0 <= caption.image < len(self.scenes):
                expected = f"captions of the {len(self.scenes)} scenes"
                fail("captions", expected, f"one of image {caption.image}", "renumber the captions or add the scenes")

    @property
    def texts(self) -> list[str]:
        """The captions as plain sentences."""
        return [caption.text for caption in self.captions]

    @property
    def image_of_caption(self) -> npt.NDArray[np.int64]:
        """Index of each caption's image."""
        return np.array([caption.image for caption in self.captions], dtype=np.int64)


def make_scenes(images: int, seed: int = 0) -> SceneDataset:
    """Create scenes with five captions each.

    Image ``k`` and its captions depend only on ``seed`` and ``k``: a larger dataset starts with the smaller one.

    Args:
        images: Number of images.
        seed: An integer of at least 0.

    Returns:
        The dataset; the images are drawn by :func:`render` or :func:`render_all`.

    Raises:
        ValueError: ``images`` is not an integer of at least 1, or ``seed`` not one of at least 0.

    Example:
        >>> data = make_scenes(4, seed=1)
        >>> len(data.scenes), len(data.texts), data.image_of_caption[:7].tolist()
        (4, 20, [0, 0, 0, 0, 0, 1, 1])
    """
    images = check_whole("images", images, least=1)
    seed = check_whole("seed", seed, least=0)
    scenes = tuple(sample_scene(seed, image) for image in range(images))
    captions = [one for image, scene in enumerate(scenes) for one in write_captions(scene, seed, image)]
    return SceneDataset(scenes, tuple(captions))


def render(scene: Scene, size: int = DEFAULT_SIZE) -> Image.Image:
    """Draw a scene.

    Args:
        scene: The scene.
        size: Side of the image in pixels.

    Returns:
        A square RGB image that depends only on the scene, its seed and the size.

    Raises:
        ValueError: ``size`` is not an integer of at least 32.

    Example:
        >>> scene = Scene("road", (SceneObject("bus", "red", "large", 0.5, 0.7),))
        >>> render(scene, size=64).size
        (64, 64)
    """
    size = check_whole("size", size, least=MIN_SIZE)
    rng = np.random.default_rng(scene.seed)
    image = draw_background(scene.background, size * _OVERSAMPLING, rng)
    # Objects that stand lower in the image are nearer, so they are drawn later.
    for one in sorted(scene.objects, key=lambda one: one.y + one.height / 2):
        draw_object(image, one, rng)
    smooth = np.asarray(image.resize((size, size), Image.Resampling.BOX), dtype=np.float32)
    noise = rng.standard_normal((size, size, 1), dtype=np.float32) * np.float32(_NOISE)
    return Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8))


def render_all(scenes: Sequence[Scene], size: int = DEFAULT_SIZE) -> npt.NDArray[np.uint8]:
    """Draw many scenes.

    Args:
        scenes: The scenes.
        size: Side of the images in pixels.

    Returns:
        Array (N, size, size, 3).

    Raises:
        ValueError: There is no scene, or ``size`` is too small or not an integer.
    """
    size = check_whole("size", size, least=MIN_SIZE)
    if len(scenes) == 0:
        fail("scenes", "at least one", "none", "pass those of `make_scenes`")
    return np.stack([np.asarray(render(scene, size)) for scene in scenes])


def save(
    dataset: SceneDataset, folder: str | Path, *, splits: Sequence[str] | None = None, size: int = DEFAULT_SIZE
) -> npt.NDArray[np.uint8]:
    """Draw a dataset and write it to a folder.

    The images are written to a temporary folder, flushed to the disk together and then renamed; ``captions.jsonl`` is
    written last. An interrupted call leaves no incomplete file under its final name.

    Args:
        dataset: The dataset.
        folder: Output folder; it is created if needed, and existing files of the same names are replaced.
        splits: ``"train"``, ``"val"`` or ``"test"`` for each image; all ``"train"`` by default.
        size: Side of the images in pixels.

    Returns:
        The images, as those of :func:`render_all`.

    Raises:
        ValueError: There is not one known split per image, or ``size`` is too small.
    """
    splits = ["train"] * len(dataset.scenes) if splits is None else splits
    if len(splits) != len(dataset.scenes):
        fail("splits", f"one split for each of the {len(dataset.scenes)} images", len(splits), "pass one per image")
    for split in splits:
        check_choice("splits", split, SPLITS)
    pixels = render_all(dataset.scenes, size=size)
    folder = Path(folder)
    _save_images(pixels, folder / "images")
    captions: list[list[Caption]] = [[] for _ in dataset.scenes]
    for caption in dataset.captions:
        captions[caption.image].append(caption)
    scene_rows, caption_rows = [], []
    for number, (scene, own) in enumerate(zip(dataset.scenes, captions, strict=True)):
        image_id = f"{number:05d}"
        facts = [asdict(caption.facts) for caption in own]
        scene_rows.append({"image_id": image_id, **asdict(scene), "facts": facts})
        for index, caption in enumerate(own):
            row = {"image_id": image_id, "caption_id": f"{image_id}-{index}"}
            caption_rows.append({**row, "text": caption.text, "split": splits[number]})
    for name, rows in (("scenes.jsonl", scene_rows), ("captions.jsonl", caption_rows)):
        write_whole(folder / name, "".join(json.dumps(row) + "\n" for row in rows))
    return pixels


def _save_images(pixels: npt.NDArray[np.uint8], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    new, _ = beside(folder)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        for number, image in enumerate(pixels):
            Image.fromarray(image).save(new / f"{number:05d}.png")
        sync_tree(new)
        for path in sorted(new.iterdir()):
            rename(path, folder / path.name)
        sync_folder(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def load(folder: str | Path) -> SceneDataset:
    """Read the scenes and captions of a saved dataset, without the images.

    Args:
        folder: A folder written by :func:`save`.

    Returns:
        The scenes with their captions in the order of the images.

    Raises:
        ValueError: A line is damaged, and the message names it; or the two files do not belong together.
    """
    folder = Path(folder)
    texts = _parse(folder / "captions.jsonl", lambda row: str(row["text"]))
    scenes = _parse(folder / "scenes.jsonl", _parse_scene)
    facts = [(image, one) for image, (_, stated) in enumerate(scenes) for one in stated]
    if len(facts) != len(texts):
        expected = "as many captions in captions.jsonl as facts in scenes.jsonl"
        fail("folder", expected, f"{len(texts)} and {len(facts)} in {folder}", "save the dataset again")
    captions = tuple(Caption(text, image, one) for text, (image, one) in zip(texts, facts, strict=True))
    return SceneDataset(tuple(scene for scene, _ in scenes), captions)


def _parse_scene(row: dict[str, Any]) -> tuple[Scene, list[Facts]]:
    """Return the scene of an image, and the facts of each of its captions."""
    scene = Scene(row["background"], tuple(SceneObject(**one) for one in row["objects"]), row["seed"])
    facts = []
    for stated in row["facts"]:
        mentions = tuple(Mention(**one) for one in stated["mentions"])
        facts.append(Facts(mentions, tuple(Relation(**one) for one in stated["relations"]), stated["background"]))
    return scene, facts


def _parse(path: Path, parse: Callable[[dict[str, Any]], _T]) -> list[_T]:
    parsed = []
    for number, row in read_json_lines(path):
        try:
            parsed.append(parse(row))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            got = f"something else ({type(error).__name__}: {error})"
            fail(f"{path}, line {number}", "fields as `save` writes them", got, "save the dataset again")
    return parsed


Rng = np.random.Generator
Draw = ImageDraw.ImageDraw
Colour = tuple[int, int, int]
Point = tuple[float, float]

DARK: Colour = (30, 28, 32)
LIGHT: Colour = (255, 255, 255)
#: Colours: of the objects by name; of parts, which do not depend on the colour of the object; and of the backgrounds,
#: from top to bottom.
_PALETTE: dict[str, Any] = json.loads((Path(__file__).parent / "palette.json").read_text(encoding="utf-8"))
PAINT: dict[str, Colour] = {name: tuple(colour) for name, colour in _PALETTE["paint"].items()}
_PARTS: dict[str, Colour] = {name: tuple(colour) for name, colour in _PALETTE["parts"].items()}
#: The objects by category. Coordinates are relative to the box of the object, (0, 0) at its top left, facing right.
#: Parts of the body get a common outline; marks (eyes, windows) are drawn on top without one. A part has a kind, the
#: name of its colour, points, and the width of a stroke as a fraction of the shorter side of the box.
SHAPES: dict[str, Any] = json.loads((Path(__file__).parent / "shapes.json").read_text(encoding="utf-8"))


def draw_background(name: str, side: int, rng: Rng) -> Image.Image:
    """Draw a background, in pale colours so that the objects stand out.

    Args:
        name: A key of ``BACKGROUNDS``.
        side: Side of the image in pixels.
        rng: Source of the random details: horizon, clouds, grass.

    Returns:
        A square RGB image.
    """
    (sky_top, sky_low), (land_top, land_low) = _PALETTE["backgrounds"][name].values()
    horizon = round(side * float(rng.uniform(0.46, 0.54)))
    rows = np.concatenate([np.linspace(sky_top, sky_low, horizon), np.linspace(land_top, land_low, side - horizon)])
    rows += rng.uniform(-6.0, 6.0, size=3)
    column = Image.fromarray(np.clip(rows, 0, 255).astype(np.uint8)[:, None, :])
    image = column.resize((side, side), Image.Resampling.NEAREST)
    _DETAILS[name](ImageDraw.Draw(image), side, horizon, rng)
    return image


def draw_object(image: Image.Image, one: SceneObject, rng: Rng) -> None:
    """Draw an object on a square image, in place."""
    side, draw = image.width, ImageDraw.Draw(image)
    wobble = rng.uniform(0.95, 1.0, size=2)
    width, height = one.width * side * float(wobble[0]), one.height * side * float(wobble[1])
    left, top = one.x * side - width / 2, one.y * side - height / 2
    fills = _fills(one.colour, rng)

    def draw_part(kind: str, points: Sequence[Point], stroke: float, fill: Colour, grow: float) -> None:
        placed = [(left + (1.0 - x if one.mirrored else x) * width, top + y * height) for x, y in points]
        _DRAW[kind](draw, placed, stroke * min(width, height), fill, grow)

    shape = SHAPES[one.category]
    # All outlines first, so that they are visible only around the whole body.
    for kind, _, points, *stroke in shape["body"]:
        draw_part(kind, points, sum(stroke), fills["outline"], max(1.0, side / 130))
    for kind, fill, points, *stroke in [*shape["body"], *shape["marks"]]:
        draw_part(kind, points, sum(stroke), fills[fill], 0.0)


def _fills(name: str, rng: Rng) -> dict[str, Colour]:
    """Choose the shade of an object, and return the colours of its parts by their names in ``shapes.json``."""
    shade = mix(PAINT[name], LIGHT if rng.random() < 0.5 else DARK, float(rng.uniform(0.0, 0.08)))
    light = mix(shade, LIGHT, 0.45)
    # Black objects have a pale outline, which is visible at night.
    dark, outline = (mix(shade, DARK, 0.35), mix(shade, DARK, 0.7)) if name != "black" else _ON_BLACK
    # Spots and seams would be invisible on a white object, and so would the yellow centre of a yellow or white flower.
    spots, seam = (dark, dark) if min(shade) > 200 else (LIGHT, light)
    centre = _PARTS["wood"] if min(shade[:2]) > 180 else (250, 205, 50)
    own = {"colour": shade, "light": light, "dark": dark, "outline": outline}
    return {**_PARTS, **own, "spots": spots, "seam": seam, "centre": centre}


def _ellipse(draw: Draw, points: Sequence[Point], _: float, fill: Colour, grow: float) -> None:
    (ax, ay), (bx, by) = points
    draw.ellipse((min(ax, bx) - grow, ay - grow, max(ax, bx) + grow, by + grow), fill=fill)


def _polygon(draw: Draw, points: Sequence[Point], _: float, fill: Colour, grow: float) -> None:
    draw.polygon(points, fill=fill)
    if grow:
        draw.line([*points, points[0], points[1]], fill=fill, width=round(2 * grow), joint="curve")


def _stroke(draw: Draw, points: Sequence[Point], thick: float, fill: Colour, grow: float) -> None:
    draw.line(points, fill=fill, width=max(1, round(thick + 2 * grow)), joint="curve")
    radius = thick / 2 + grow
    # Pillow draws square ends; round ends look better for limbs and stalks.
    for x, y in (points[0], points[-1]) if radius > 1.5 else ():
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)


_DRAW = {"ellipse": _ellipse, "polygon": _polygon, "stroke": _stroke}
_ON_BLACK: tuple[Colour, Colour] = (78, 78, 84), (150, 150, 156)


def _meadow(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    _clouds(draw, side, rng)
    _hill(draw, side, horizon, float(rng.uniform(0.1, 0.9)), (150, 205, 130))
    for x, y in rng.uniform((0.0, horizon / side), (1.0, 1.0), size=(60, 2)) * side:
        tall = side * 0.02
        draw.line((x, y, x - tall / 2, y - tall), fill=(105, 170, 85), width=2)
        draw.line((x, y, x + tall / 2, y - tall), fill=(105, 170, 85), width=2)


def _beach(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    _clouds(draw, side, rng)
    draw.rectangle((0, horizon, side, horizon + side * 0.1), fill=(88, 165, 210))
    foam = [(x, horizon + side * (0.1 + 0.012 * np.sin(x / side * 18 + 2))) for x in range(0, side + 8, 8)]
    draw.line(foam, fill=LIGHT, width=max(2, side // 50))
    _specks(draw, side, horizon + side * 0.14, rng, (214, 190, 140), 120)


def _snow(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    for centre in rng.uniform(0.0, 1.0, size=3):
        peak, half = horizon - side * 0.22, side * 0.28
        x = float(centre) * side
        draw.polygon([(x - half, horizon), (x, peak), (x + half, horizon)], fill=(176, 190, 208))
        draw.polygon([(x - half * 0.3, peak + side * 0.066), (x, peak), (x + half * 0.3, peak + side * 0.066)], LIGHT)
    for x, y in rng.uniform(0.0, side, size=(50, 2)):
        draw.ellipse((x, y, x + side * 0.014, y + side * 0.014), fill=LIGHT)
    for x, y in rng.uniform((0.0, horizon / side), (1.0, 1.0), size=(8, 2)) * side:
        draw.line((x, y, x + side * 0.1, y + side * 0.01), fill=(206, 218, 234), width=2)


def _city(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    for x, y in rng.uniform(0.0, 1.0, size=(25, 2)):
        draw.point((x * side, y * horizon), fill=(240, 240, 210))
    moon = float(rng.uniform(0.1, 0.85)) * side
    draw.ellipse((moon, side * 0.05, moon + side * 0.1, side * 0.15), fill=(250, 245, 205))
    for left in np.arange(0.0, side, side / 8):
        top = horizon - side * float(rng.uniform(0.08, 0.3))
        draw.rectangle((left, top, left + side / 8 - 2, horizon), fill=(58, 62, 92))
        for x in np.arange(left + side * 0.02, left + side * 0.1, side * 0.035):
            for y in np.arange(top + side * 0.025, horizon - side * 0.03, side * 0.05):
                if rng.random() < 0.5:
                    draw.rectangle((x, y, x + side * 0.016, y + side * 0.024), fill=(250, 220, 120))
    draw.rectangle((0, horizon, side, horizon + side * 0.03), fill=(120, 120, 135))


def _room(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    for x in np.arange(0.0, side, side / 12):
        draw.line((x, 0, x, horizon), fill=(236, 216, 196), width=max(2, side // 60))
    draw.rectangle((0, horizon - side * 0.02, side, horizon), fill=(250, 246, 238))
    left, top, wide = float(rng.uniform(0.06, 0.66)) * side, side * 0.08, side * 0.26
    middle, right, low, frame = left + wide / 2, left + wide, top + wide, (250, 250, 250)
    draw.rectangle((left, top, right, low), fill=(198, 226, 244), outline=frame, width=side // 40)
    draw.line((middle, top, middle, low), fill=frame, width=side // 60)
    draw.line((left, top + wide / 2, right, top + wide / 2), fill=frame, width=side // 60)
    for y in np.arange(horizon + side * 0.07, side, side * 0.08):
        draw.line((0, y, side, y), fill=(176, 132, 90), width=2)
        for x in rng.uniform(0.0, side, size=3):
            draw.line((x, y, x, y + side * 0.08), fill=(176, 132, 90), width=2)


def _road(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    _clouds(draw, side, rng)
    _hill(draw, side, horizon, float(rng.uniform(0.1, 0.9)), (165, 200, 140))
    middle = side * float(rng.uniform(0.42, 0.58))
    left, right = middle - side * 0.06, middle + side * 0.06
    draw.polygon([(left, horizon), (right, horizon), (side * 1.1, side), (-side * 0.1, side)], fill=(150, 152, 158))
    for start in (0.08, 0.3, 0.62):
        top, low = (horizon + (side - horizon) * share for share in (start, start + 0.16 + start * 0.2))
        thin = side * (0.006 + 0.02 * start)
        mark = [(-thin, top), (thin, top), (thin * 1.3, low), (-thin * 1.3, low)]
        draw.polygon([(middle + x, y) for x, y in mark], fill=(245, 240, 225))


def _sea(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    _clouds(draw, side, rng)
    for x, y in rng.uniform((0.0, horizon / side + 0.03), (1.0, 1.0), size=(34, 2)) * side:
        reach = side * 0.035
        draw.arc((x - reach, y - reach / 2, x + reach, y + reach / 2), 190, 350, fill=(200, 228, 242), width=3)


def _desert(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    sun = float(rng.uniform(0.1, 0.8)) * side
    draw.ellipse((sun, side * 0.08, sun + side * 0.12, side * 0.2), fill=(255, 244, 205))
    tones = ((226, 178, 112), (236, 190, 124), (230, 184, 118))
    for centre, tone in zip(rng.uniform(0.0, 1.0, size=3), tones, strict=True):
        _hill(draw, side, horizon, float(centre), tone)
    _specks(draw, side, horizon, rng, (206, 160, 100), 70)
    x, low, tall = float(rng.uniform(0.05, 0.95)) * side, horizon + side * 0.03, side * 0.13
    draw.line((x, low, x, low - tall), fill=(122, 158, 104), width=side // 40)
    arms = [(x + tall * dx, low - tall * dy) for dx, dy in ((-0.35, 0.8), (-0.35, 0.45), (0.35, 0.45), (0.35, 0.9))]
    draw.line(arms, fill=(122, 158, 104), width=side // 60)


def _clouds(draw: Draw, side: int, rng: Rng) -> None:
    for x, y in rng.uniform((0.0, 0.04), (0.9, 0.26), size=(2, 2)) * side:
        for shift, drop, reach in ((0.0, 0.02, 0.05), (0.05, 0.0, 0.07), (0.11, 0.02, 0.05)):
            left, top = x + shift * side, y + drop * side
            draw.ellipse((left, top, left + 2 * reach * side, top + reach * side), fill=(246, 250, 254))


def _hill(draw: Draw, side: int, horizon: int, centre: float, fill: Colour) -> None:
    x, reach = centre * side, side * 0.42
    draw.pieslice((x - reach, horizon - side * 0.09, x + reach, horizon + side * 0.09), 180, 360, fill=fill)


def _specks(draw: Draw, side: int, top: float, rng: Rng, fill: Colour, count: int) -> None:
    for x, y in rng.uniform((0.0, top / side), (1.0, 1.0), size=(count, 2)) * side:
        draw.ellipse((x, y, x + 2, y + 1), fill=fill)


def mix(one: Colour, other: Colour, share: float) -> Colour:
    """Mix two colours; ``share`` is the share of ``other``.

    Example:
        >>> mix((0, 0, 0), (200, 100, 50), 0.5)
        (100, 50, 25)
    """
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue


#: The functions above by the names of the backgrounds.
_DETAILS = {one.__name__[1:]: one for one in (_meadow, _beach, _snow, _city, _room, _road, _sea, _desert)}
