"""Feature extraction with many decoding threads: ``python -m benchmarks.decoding --photos 4000 --device cuda``.

Draws JPEG photos of 500 x 375 pixels, the size of those of Flickr8k, and extracts their features with 1 thread that
decodes, with half as many as cores and with as many. Runs the network alone on images in memory, too. Prints photos per
second; the time to load the network is subtracted, as that of an extraction of 256 photos (of an eighth of the photos
if that is less).
"""

import argparse
import contextlib
import io
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from bcls.data.dataset import open_dataset
from bcls.data.records import Caption, Content, ImageRecord, write_dataset
from bcls.features.backbones import load_backbone
from bcls.features.extraction import FeatureSettings, extract
from benchmarks.tables import show

#: Photos of the extraction that measures the set-up, and photos a second that an extraction must reach.
FEW, BAR = 256, 600


def draw(folder, count):
    """JPEG files with as much detail as photos: smooth colours and some noise, about 60 KB each."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number in range(min(count, 64)):
        small = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        image = np.asarray(Image.fromarray(small).resize((500, 375), Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = (image + generator.normal(0, 12, image.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{number:05d}.jpg", quality=90)
    for number in range(64, count):  # further photos are copies, read from files of their own
        (folder / f"{number:05d}.jpg").write_bytes((folder / f"{number % 64:05d}.jpg").read_bytes())


def dataset_of(folder, count, few):
    names = [f"{number:05d}" for number in range(count)]
    split = {name: "few" if number < few else "many" for number, name in enumerate(names)}
    images = tuple(ImageRecord(name, split[name], f"{name}.jpg") for name in names)
    captions = tuple(Caption(name, name, "drawn", split[name]) for name in names)
    write_dataset(folder / "data", Content("drawn", images, captions, sources=(folder / "photos",)))
    return open_dataset(folder / "data")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=int, default=2000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backbone", default="efficientnet-lite2")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    cores, few, rows = os.cpu_count() or 1, min(FEW, arguments.photos // 8), []
    with tempfile.TemporaryDirectory() as where:
        draw(Path(where) / "photos", arguments.photos)
        dataset = dataset_of(Path(where), arguments.photos, few)
        for workers in sorted({1, max(1, cores // 2), cores}):
            took = {split: seconds(dataset, arguments, workers, split) for split in ("few", "many")}
            rate = (arguments.photos - 2 * few) / (took["many"] - took["few"])
            bar = BAR if workers > 1 else None
            rows.append({"what": f"{workers} decoding threads, photos/s", "value": rate, "bar": bar, "side": "least"})
        rows.append({"what": "the network alone, photos/s", "value": alone(dataset, arguments), "bar": None})
    title = f"{arguments.backbone}, {arguments.photos} photos of 500 x 375, {cores} cores"
    show(title, rows, arguments.json, torch_device(arguments.device))


def torch_device(name):
    return torch.device("cuda" if torch.cuda.is_available() and name != "cpu" else "cpu")


def seconds(dataset, arguments, workers, split):
    """Time of an extraction."""
    name = f"{split}-{workers}"
    settings = FeatureSettings(
        arguments.backbone, "global", name=name, split=split, workers=workers, device=arguments.device
    )
    started = time.perf_counter()
    with contextlib.redirect_stderr(io.StringIO()):
        extract(dataset, settings)
    return time.perf_counter() - started


def alone(dataset, arguments):
    """Photos per second of the network, with prepared images in memory."""
    device = torch_device(arguments.device)
    backbone = load_backbone(arguments.backbone).to(device).eval()
    image = backbone.prepare(dataset.read_image(dataset.image_ids[0]))
    pixels = image.expand(128, -1, -1, -1).contiguous()
    with torch.inference_mode():
        for turn in range(2):
            started = time.perf_counter()
            for _ in range(8 if turn else 1):
                backbone(pixels.to(device)).mean((2, 3)).cpu()
    return 8 * 128 / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
