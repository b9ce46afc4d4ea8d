"""What exported towers are compared with, and their README's code run."""

import re
import subprocess
import sys

import numpy as np
import onnxruntime
import torch

from bcls.models.export import TOLERANCE
from tests.models.dual import made


def tower(path, name):
    session = onnxruntime.InferenceSession(str(path))

    def run(items):
        given = {name: items.values.numpy()}
        if items.lengths is not None:
            given["lengths"] = items.lengths.numpy()
        return torch.from_numpy(session.run(None, given)[0])

    return run


def check(model, out, exported, images):
    """Other inputs than those that the export itself was checked with: more items, other lengths, one alone."""
    assert max(exported.image_difference, exported.text_difference) <= TOLERANCE
    image_tower, text_tower = tower(out / "image.onnx", "images"), tower(out / "text.onnx", "numbers")
    for texts in (made.TEXTS * 3, ["a dog runs"], ["a"]):
        found = text_tower(model.prepare_texts(texts))
        torch.testing.assert_close(found, model.encode_texts(texts), atol=TOLERANCE, rtol=0)
    for some in images:
        found = image_tower(model.prepare_images(some))
        torch.testing.assert_close(found, model.encode_images(some), atol=TOLERANCE, rtol=0)


def run_readme(out):
    """Run the README's block in the folder, where neither torch nor this package may be imported; its scores."""
    code = re.search(r"```python\n(.*?)```", (out / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    blocked = "import sys\nsys.modules['torch'] = sys.modules['bcls'] = None\n"
    subprocess.run(
        [sys.executable, "-c", f"{blocked}{code}\nnp.save('scores.npy', scores)"], cwd=out, check=True, timeout=120
    )
    return torch.from_numpy(np.load(out / "scores.npy"))
