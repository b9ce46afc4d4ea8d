"""Writes a dataset to a folder, and reads it back.

The folder holds ``images/00000.png`` and so on; ``captions.jsonl``, one caption a line with ``image_id`` (the picture's
file name without its ending), ``caption_id``, ``text`` and ``split``; and ``scenes.jsonl``, one image a line with its
scene graph and the facts that its captions state.
"""

import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from bcls._core.errors import check_choice, fail
from bcls._core.files import write_whole
from bcls.data.synthetic.dataset import SceneDataset
from bcls.data.synthetic.facts import Caption, Facts, Mention, Relation
from bcls.data.synthetic.render import DEFAULT_SIZE, render_all
from bcls.data.synthetic.scene import Scene, SceneObject
from bcls.data.text_files import read_json_lines

SPLITS = ("train", "val", "test")
_T = TypeVar("_T")


def save(
    dataset: SceneDataset,
    folder: str | Path,
    *,
    splits: Sequence[str] | None = None,
    size: int = DEFAULT_SIZE,
    workers: int = 1,
) -> None:
    """Draw a dataset and write it to a folder.

    Every file appears complete or not at all, and ``captions.jsonl`` appears last.

    Args:
        dataset: What to write.
        folder: Where to; made if it is not there, and files of the same names are replaced.
        splits: ``"train"``, ``"val"`` or ``"test"`` for each image; all ``"train"`` when left out.
        size: Side of the pictures in pixels.
        workers: How many processes draw.

    Raises:
        ValueError: There is not one known split an image, or ``size`` or ``workers`` is too small.
    """
    splits = ["train"] * len(dataset.scenes) if splits is None else splits
    if len(splits) != len(dataset.scenes):
        fail("splits", f"one split for each of the {len(dataset.scenes)} images", len(splits), "pass one an image")
    for split in splits:
        check_choice("splits", split, SPLITS)
    pictures = render_all(dataset.scenes, size=size, workers=workers)
    folder = Path(folder)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for image, pixels in enumerate(pictures):
        encoded = io.BytesIO()
        Image.fromarray(pixels).save(encoded, format="PNG")
        write_whole(folder / "images" / f"{_image_id(image)}.png", encoded.getvalue())
    written_for = _by_image(dataset)
    _write_lines(folder / "scenes.jsonl", (_scene_line(dataset, image, written_for[image]) for image in written_for))
    _write_lines(
        folder / "captions.jsonl",
        (
            {
                "image_id": _image_id(image),
                "caption_id": f"{_image_id(image)}-{place}",
                "text": caption.text,
                "split": splits[image],
            }
            for image, captions in written_for.items()
            for place, caption in enumerate(captions)
        ),
    )


def load(folder: str | Path) -> SceneDataset:
    """Read the scenes and captions of a saved dataset, without the pictures.

    Args:
        folder: A folder that :func:`save` wrote.

    Returns:
        The scenes as saved, with their captions in the order of the images.

    Raises:
        ValueError: A file is damaged, and the message names the line; or the two files do not belong together.
    """
    texts = [
        _parsed(Path(folder) / "captions.jsonl", number, lambda line: str(line["text"]), line)
        for number, line in read_json_lines(Path(folder) / "captions.jsonl")
    ]
    path = Path(folder) / "scenes.jsonl"
    lines = [_parsed(path, number, _scene, line) for number, line in read_json_lines(path)]
    stated_for = sum(len(facts) for _, facts in lines)
    if stated_for != len(texts):
        fail(
            "folder",
            "as many captions in captions.jsonl as scenes.jsonl has facts for",
            f"{len(texts)} and {stated_for} in {folder}",
            "save the dataset again",
        )
    whose = ((image, facts) for image, (_, stated) in enumerate(lines) for facts in stated)
    captions = tuple(Caption(text, image, facts) for text, (image, facts) in zip(texts, whose, strict=True))
    return SceneDataset(tuple(scene for scene, _ in lines), captions)


def _scene(line: dict[str, Any]) -> tuple[Scene, list[Facts]]:
    """The scene of an image, and what each of its captions states."""
    scene = Scene(line["background"], tuple(SceneObject(**one) for one in line["objects"]), line["seed"])
    return scene, [
        Facts(
            tuple(Mention(**one) for one in stated["mentions"]),
            tuple(Relation(**one) for one in stated["relations"]),
            stated["background"],
        )
        for stated in line["facts"]
    ]


def _parsed(path: Path, number: int, parse: Callable[[dict[str, Any]], _T], line: dict[str, Any]) -> _T:
    try:
        return parse(line)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        got = f"something else ({type(error).__name__}: {error})"
        fail(f"{path}, line {number}", "fields as `save` writes them", got, "save the dataset again")


def _image_id(image: int) -> str:
    return f"{image:05d}"


def _by_image(dataset: SceneDataset) -> dict[int, list[Caption]]:
    written_for: dict[int, list[Caption]] = {image: [] for image in range(len(dataset.scenes))}
    for caption in dataset.captions:
        written_for[caption.image].append(caption)
    return written_for


def _scene_line(dataset: SceneDataset, image: int, captions: list[Caption]) -> dict[str, Any]:
    facts = [asdict(caption.facts) for caption in captions]
    return {"image_id": _image_id(image), **asdict(dataset.scenes[image]), "facts": facts}


def _write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    write_whole(path, "".join(json.dumps(line) + "\n" for line in lines))
