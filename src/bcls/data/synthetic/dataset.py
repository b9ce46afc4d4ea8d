"""The dataset of drawn scenes: creation, rendering, saving and loading.

A saved folder contains ``images/00000.png`` and so on; ``captions.jsonl``, one caption per line with ``image_id`` (the
file name without extension), ``caption_id``, ``text`` and ``split``; and ``scenes.jsonl``, one image per line with its
scene graph and the facts that its captions state.
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from bcls._core.errors import check_choice, check_whole, fail
from bcls._core.files import write_whole
from bcls.data.synthetic.captions import Caption, Facts, Mention, Relation, write_captions
from bcls.data.synthetic.drawing import draw_background, draw_object
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
) -> None:
    """Draw a dataset and write it to a folder.

    Every file is written atomically, and ``captions.jsonl`` is written last.

    Args:
        dataset: The dataset.
        folder: Output folder; it is created if needed, and existing files of the same names are replaced.
        splits: ``"train"``, ``"val"`` or ``"test"`` for each image; all ``"train"`` by default.
        size: Side of the images in pixels.

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
    (folder / "images").mkdir(parents=True, exist_ok=True)
    captions: list[list[Caption]] = [[] for _ in dataset.scenes]
    for caption in dataset.captions:
        captions[caption.image].append(caption)
    scene_rows, caption_rows = [], []
    for number, (scene, own) in enumerate(zip(dataset.scenes, captions, strict=True)):
        image_id = f"{number:05d}"
        encoded = io.BytesIO()
        Image.fromarray(pixels[number]).save(encoded, format="PNG")
        write_whole(folder / "images" / f"{image_id}.png", encoded.getvalue())
        facts = [asdict(caption.facts) for caption in own]
        scene_rows.append({"image_id": image_id, **asdict(scene), "facts": facts})
        for index, caption in enumerate(own):
            row = {"image_id": image_id, "caption_id": f"{image_id}-{index}"}
            caption_rows.append({**row, "text": caption.text, "split": splits[number]})
    for name, rows in (("scenes.jsonl", scene_rows), ("captions.jsonl", caption_rows)):
        write_whole(folder / name, "".join(json.dumps(row) + "\n" for row in rows))


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
