"""The dataset: scenes with their captions."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bcls._core.errors import check_whole
from bcls.data.synthetic.captions import write_captions
from bcls.data.synthetic.facts import Caption
from bcls.data.synthetic.sampler import sample_scene
from bcls.data.synthetic.scene import Scene


@dataclass(frozen=True)
class SceneDataset:
    """Scenes and the captions written for them.

    Attributes:
        scenes: One scene an image.
        captions: All captions, those of image 0 first.
    """

    scenes: tuple[Scene, ...]
    captions: tuple[Caption, ...]

    def __post_init__(self) -> None:
        for caption in self.captions:
            if not 0 <= caption.image < len(self.scenes):
                raise ValueError(
                    f"`captions` must belong to one of the {len(self.scenes)} scenes, got one of image "
                    f"{caption.image}; renumber the captions or add the scenes."
                )

    @property
    def texts(self) -> list[str]:
        """The captions as plain sentences."""
        return [caption.text for caption in self.captions]

    @property
    def image_of_caption(self) -> npt.NDArray[np.int64]:
        """Index of the image that each caption was written for."""
        return np.array([caption.image for caption in self.captions], dtype=np.int64)


def make_scenes(images: int, seed: int = 0) -> SceneDataset:
    """Make scenes with five captions each.

    Image ``k`` and its captions depend on ``seed`` and ``k`` alone: a larger dataset begins with the smaller one.

    Args:
        images: How many images.
        seed: Any whole number from 0 up.

    Returns:
        The dataset; the pictures themselves come from ``render`` or ``render_all``.

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
