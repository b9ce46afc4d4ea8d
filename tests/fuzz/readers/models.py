"""Models: published checkpoints, and the files of a saved model."""

import io
import json
import struct
import tempfile
import zipfile
from functools import partial
from pathlib import Path

import torch

from bcls.models import load
from bcls.models.folder import save_folder
from bcls.models.published import import_checkpoint
from tests.fuzz.damage import change_value, damage, damage_json, or_plain
from tests.fuzz.engine import Reader
from tests.fuzz.readers._imports import put
from tests.models import factories as made
from tests.models.test_published import checkpoint


def checkpoints(zipped):
    buffer = io.BytesIO()
    torch.save(checkpoint()[1], buffer, _use_new_zipfile_serialization=zipped)
    return [buffer.getvalue()]


def damage_inside(draw, seeds):
    """Return a zip with one damaged member and a correct checksum, so that its reader sees the damage."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(draw.choice(seeds))) as old, zipfile.ZipFile(buffer, "w") as new:
        names = old.namelist()
        chosen = next(name for name in names if name.endswith(".pkl")) if draw.random() < 0.8 else draw.choice(names)
        for name in names:
            content = old.read(name)
            new.writestr(name, damage(draw, [content]) if name == chosen else content)
    return buffer.getvalue()


def damage_tensors(draw, seeds):
    """Return a safetensors file with a changed header of the correct length."""
    content = draw.choice(seeds)
    length = struct.unpack_from("<Q", content)[0]
    header = json.loads(content[8 : 8 + length])
    one = header[draw.choice([name for name in header if name != "__metadata__"])]
    how = draw.randrange(4)
    if how == 0:
        one["dtype"] = draw.choice(
            ("F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "F8_E8M0", "F4", "C64", "X", "U16")
        )
    elif how == 1:
        one["shape"] = draw.choice(([0], [], [10**12, 0], [2**62, 4], [-1], [1] * 80, [2], [1, 1]))
    else:
        header = change_value(draw, header)
    packed = json.dumps(header).encode()
    return struct.pack("<Q", len(packed)) + packed + content[8 + length :]


def saved(name):
    with tempfile.TemporaryDirectory() as place:
        save_folder(made.model("vsepp"), Path(place) / "model")
        return [(Path(place) / "model" / name).read_bytes()]


def read_checkpoint(content, folder):
    import_checkpoint(put(folder, "model_best.pth.tar", content), vocabulary=made.VOCABULARY)


def read_folder(name, content, folder):
    place = folder / f"model with {name}"
    if not place.exists():
        save_folder(made.model("vsepp"), place)
    whole = (place / name).read_bytes()
    put(place, name, content)
    try:
        load(place)
    finally:
        put(place, name, whole)


READERS = (
    Reader("checkpoint", partial(checkpoints, True), read_checkpoint, or_plain(damage_inside, 0.7)),
    Reader("old checkpoint", partial(checkpoints, False), read_checkpoint),
    Reader(
        "model weights",
        partial(saved, "model.safetensors"),
        partial(read_folder, "model.safetensors"),
        or_plain(damage_tensors),
    ),
    Reader("model config", partial(saved, "config.json"), partial(read_folder, "config.json"), damage_json),
    Reader("model words", partial(saved, "vocab.json"), partial(read_folder, "vocab.json"), damage_json),
)
