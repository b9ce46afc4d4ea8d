"""Self-test: three drawn scenes are indexed, and each is found again."""

import contextlib
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bcls._checks import fail

if TYPE_CHECKING:
    from torch import Tensor

    from bcls.demo.towers import Reader


def try_search() -> str:
    """Index three scenes with a small network of fresh weights, and search with each picture.

    Raises:
        ValueError: A picture is not the first answer to itself.
        MissingExtraError: Without the extra ``index``.
    """
    from bcls._extras import require

    require("faiss", "index", "an index of photos")
    import torch

    from bcls.data.synthetic import make_scenes, render
    from bcls.demo.towers import ScenesConfig, ScenesModel
    from bcls.index import IndexSettings, build_index
    from bcls.search import Service

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ScenesModel(ScenesConfig(side=48, channels=4, width=16), reader=_letters()).eval()
    with tempfile.TemporaryDirectory(prefix="bcls-doctor-") as name:
        photos, index = Path(name) / "photos", Path(name) / "index"
        photos.mkdir()
        for number, scene in enumerate(make_scenes(3, seed=0).scenes):
            render(scene, 48).save(photos / f"{number}.png")
        settings = IndexSettings(out=str(index), model="self-test", captions=False, workers=1)
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars are no part of a report
            build_index(photos, settings, model=model)
        with Service(index, model) as service:
            for picture in sorted(photos.iterdir()):
                first = service.search_image(picture.read_bytes(), 1).hits[0]
                if Path(first.path).name != picture.name:
                    fail("search", f"{picture.name} as the first answer to itself", first.path, "please report this")
    return "3 drawn scenes indexed, and each found by itself"


def _letters() -> "Reader":
    """Texts as how often each character comes, in place of MiniLM, which takes seconds to load."""
    import torch

    from bcls.demo.towers import TEXT_WIDTH, Reader

    class Letters(Reader):
        def __call__(self, texts: Sequence[str]) -> "Tensor":
            counts = torch.zeros(len(texts), TEXT_WIDTH)
            for row, text in enumerate(texts):
                for character in text:
                    counts[row, ord(character) % TEXT_WIDTH] += 1
            return torch.nn.functional.normalize(counts, dim=1)

    return Letters()
