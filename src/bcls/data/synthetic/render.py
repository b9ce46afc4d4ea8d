"""Draws scenes as pictures."""

import errno
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from bcls._core.errors import check_whole
from bcls.data.synthetic import draw_animals, draw_outdoors, draw_things, draw_vehicles
from bcls.data.synthetic.draw_backgrounds import draw_background
from bcls.data.synthetic.pen import Pen
from bcls.data.synthetic.scene import Scene, SceneObject

DEFAULT_SIZE = 96
# Below this the eyes, wheels and windows that tell one category from another fall between the pixels.
LEAST_SIZE = 32
_FINER = 2
_GRAIN = 3.0
# Large enough that sending the scenes over and the pixels back costs little beside the drawing.
_CHUNK = 64

SHAPES: dict[str, Callable[[Pen], None]] = {
    "dog": draw_animals.dog,
    "cat": draw_animals.cat,
    "bird": draw_animals.bird,
    "fish": draw_animals.fish,
    "car": draw_vehicles.car,
    "bus": draw_vehicles.bus,
    "boat": draw_vehicles.boat,
    "tree": draw_outdoors.tree,
    "flower": draw_outdoors.flower,
    "mushroom": draw_outdoors.mushroom,
    "house": draw_outdoors.house,
    "tower": draw_outdoors.tower,
    "ball": draw_things.ball,
    "kite": draw_things.kite,
    "balloon": draw_things.balloon,
    "chair": draw_things.chair,
    "lamp": draw_things.lamp,
    "umbrella": draw_things.umbrella,
}


def render(scene: Scene, size: int = DEFAULT_SIZE) -> Image.Image:
    """Draw one scene.

    Args:
        scene: What to draw.
        size: Side of the picture in pixels.

    Returns:
        A square RGB picture that depends on the scene, its seed and the size alone.

    Raises:
        ValueError: ``size`` is not an integer of at least 32.

    Example:
        >>> scene = Scene("road", (SceneObject("bus", "red", "large", 0.5, 0.7),))
        >>> render(scene, size=64).size
        (64, 64)
    """
    size = check_whole("size", size, least=LEAST_SIZE)
    rng = np.random.default_rng(scene.seed)
    picture = draw_background(scene.background, size * _FINER, rng)
    # What stands lower in the picture is nearer, so it is drawn later and may cover what is behind it.
    for one in sorted(scene.objects, key=lambda one: one.y + one.height / 2):
        draw_object(picture, one, rng)
    smooth = np.asarray(picture.resize((size, size), Image.Resampling.BOX), dtype=np.float32)
    grain = rng.standard_normal((size, size, 1), dtype=np.float32) * np.float32(_GRAIN)
    return Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8))


def draw_object(picture: Image.Image, one: SceneObject, rng: np.random.Generator) -> None:
    """Draw one object on a square picture, in place."""
    pen = Pen(ImageDraw.Draw(picture), one, picture.width, rng)
    SHAPES[one.category](pen)
    pen.finish()


def render_all(scenes: Sequence[Scene], size: int = DEFAULT_SIZE, workers: int = 1) -> npt.NDArray[np.uint8]:
    """Draw many scenes, spread over processes.

    Args:
        scenes: What to draw.
        size: Side of the pictures in pixels.
        workers: How many processes to use; 1 draws in this one. Processes are spawned, so a script that asks for more
            than one must keep its own work under ``if __name__ == "__main__":``.

    Returns:
        Array (N, size, size, 3), the same for any number of workers.

    Raises:
        ValueError: There is no scene, or ``size`` or ``workers`` is not an integer that is large enough.
        OSError: A process was killed.
    """
    size = check_whole("size", size, least=LEAST_SIZE)
    workers = check_whole("workers", workers, least=1)
    if len(scenes) == 0:
        raise ValueError("`scenes` must not be empty, got none; pass those of `make_scenes`.")
    chunks = [scenes[start : start + _CHUNK] for start in range(0, len(scenes), _CHUNK)]
    workers = min(workers, len(chunks))
    if workers == 1:
        return np.concatenate([_render_chunk(chunk, size) for chunk in chunks])
    # Spawned, not forked: a fork of a process in which threads run (torch starts some) may hang.
    try:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            return np.concatenate(list(pool.map(_render_chunk, chunks, [size] * len(chunks))))
    except (BrokenProcessPool, OSError) as error:
        # One that dies while it is given work leaves a closed pipe behind, which has no number; other errors have one.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise OSError(errno.ECHILD, "a process that draws was killed; is the memory full? use fewer workers") from error


def _render_chunk(scenes: Sequence[Scene], size: int) -> npt.NDArray[np.uint8]:
    return np.stack([np.asarray(render(scene, size)) for scene in scenes])
