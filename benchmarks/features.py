"""Feature extraction compared with a bare loop of the same network: ``python -m benchmarks.features DATA``.

DATA contains ``dataset_flickr8k.json.gz`` and ``images_224.zip``. Both compute global EfficientNet-Lite0 features of
the same photos, alternating between slices of the photos; the median over slices is reported. The extraction reads and
decodes the photos, computes and writes the file; the bare loop has tensors in memory and discards the results. The loop
uses the CPU in two ways, all threads on one batch or one batch per thread; the faster one is the baseline.

``--kill N`` kills an extraction N times at random moments, resumes it to the end, and compares the files with those of
an uninterrupted extraction.
"""

import argparse
import contextlib
import io
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from bcls.data.dataset import open_dataset
from bcls.data.importers import ImportSettings, run_import
from bcls.data.records import Content, write_dataset
from bcls.features.backbones import load_backbone
from bcls.features.extraction import FeatureSettings, extract
from benchmarks.tables import show

NETWORK = "efficientnet-lite0"


def slices_of(data, where, photos, count):
    """A dataset of the first photos, with one split per slice."""
    with contextlib.redirect_stderr(io.StringIO()):
        settings = ImportSettings(images=str(data / "images_224.zip"), out=str(where / "all"))
        run_import("karpathy", str(data / "dataset_flickr8k.json.gz"), settings)
    whole = open_dataset(where / "all")
    size = min(photos or len(whole.images), len(whole.images)) // count
    split = {image.image_id: f"slice{place // size}" for place, image in enumerate(whole.images[: size * count])}
    content = Content(
        "flickr8k",
        tuple(image._replace(split=split[image.image_id]) for image in whole.images[: size * count]),
        tuple(one._replace(split=split[one.image_id]) for one in whole.captions if one.image_id in split),
        sources=(data / "images_224.zip",),
    )
    write_dataset(where / "slices", content)
    return open_dataset(where / "slices")


def seconds(run):
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def bare(backbone, batches, lanes):
    """Run the network on batches in memory: one after another with all torch threads, or one thread per batch."""
    before = torch.get_num_threads()

    def one(batch):
        with torch.inference_mode():
            return backbone(batch).mean((2, 3))

    try:
        if lanes == 1:
            for batch in batches:
                one(batch)
        else:
            with ThreadPoolExecutor(lanes, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                list(pool.map(one, batches))
    finally:
        torch.set_num_threads(before)


def speed(data, photos, count, batch, path):
    backbone = load_backbone(NETWORK)
    cores = torch.get_num_threads()
    times = {"bare loop, all threads on a batch": [], f"bare loop, {cores} batches at a time": [], "bcls": []}
    with tempfile.TemporaryDirectory() as where:
        dataset = slices_of(data, Path(where), photos, count)
        for split in dataset.splits:
            part = dataset.split(split)
            pixels = torch.stack([backbone.prepare(part.read_image(image)) for image in part.image_ids])
            batches = list(pixels.split(batch))
            settings = FeatureSettings(NETWORK, "global", name=f"of-{split}", split=split, device="cpu")
            bare(backbone, batches[:1], 1)
            with contextlib.redirect_stderr(io.StringIO()):
                runs = (
                    lambda batches=batches: bare(backbone, batches, 1),
                    lambda batches=batches: bare(backbone, batches, cores),
                    lambda settings=settings: extract(dataset, settings),
                )
                for kept, run in zip(times.values(), runs, strict=True):
                    kept.append(len(part.images) / seconds(run))
    rates = {what: statistics.median(values) for what, values in times.items()}
    baseline = max(rate for what, rate in rates.items() if what != "bcls")
    rows = [{"what": what, "photos/s": rate, "of the faster loop": rate / baseline} for what, rate in rates.items()]
    show(f"{NETWORK}, global, {photos or 'all'} photos in {count} slices, {cores} threads", rows, path)


def kill(data, photos, times):
    """Kill an extraction at random moments; the files must equal those of an uninterrupted one."""
    code = (
        "import sys, bcls.features.extraction, bcls.cli.data\n"
        "bcls.features.extraction.BLOCK = 16\n"
        "sys.exit(bcls.cli.data.main(['features', sys.argv[1], '--name', sys.argv[2], '--regions', 'global']))\n"
    )
    chance, killed = random.Random(), 0
    with tempfile.TemporaryDirectory() as where:
        dataset = slices_of(data, Path(where), photos, 2)

        def start(name):
            words = [sys.executable, "-c", code, str(dataset.folder), name]
            return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # noqa: S603 - ourselves

        started = time.perf_counter()
        if start("whole").wait():
            raise SystemExit("the uninterrupted extraction failed")
        whole = time.perf_counter() - started
        while killed < times:
            child = start("parts")
            try:
                child.wait(chance.uniform(0.3, 1.0) * whole)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                child.communicate()
                killed += 1
            else:
                break
        last = start("parts")
        _, errors = last.communicate()
        if last.returncode:
            raise SystemExit(errors.decode())
        folders = [dataset.folder / "features" / name for name in ("whole", "parts")]
        names = [sorted(path.name for path in folder.iterdir()) for folder in folders]
        same = names[0] == names[1] and all(
            (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes() for name in names[0]
        )
    print(f"killed {killed} times, then finished: the files are {'identical' if same else 'DIFFERENT'}")
    return 0 if same else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with dataset_flickr8k.json.gz and images_224.zip")
    parser.add_argument("--photos", type=int, default=0, help="number of photos; default: all")
    parser.add_argument("--slices", type=int, default=5, help="number of slices")
    parser.add_argument("--batch", type=int, default=16, help="batch size of the bare loop")
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="kill an extraction N times instead")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    given = parser.parse_args()
    if given.kill:
        raise SystemExit(kill(given.data, given.photos or 256, given.kill))
    speed(given.data, given.photos, given.slices, given.batch, given.json)


if __name__ == "__main__":
    main()
