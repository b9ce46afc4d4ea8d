"""Region features of bottom-up attention, and folders that ``datasets`` saved."""

import gzip
import io
import shutil

import numpy as np

from bcls.data.importers import ImportSettings, run_import
from tests.data.factories import image_bytes, make_dataset
from tests.data.importers.test_regions import tsv_line
from tests.fuzz.damage import damage_json
from tests.fuzz.engine import Reader
from tests.fuzz.readers._imports import imported, put


def tsv():
    plain = (tsv_line("i0", np.ones((2, 3), np.float32)) + tsv_line("i1", np.ones((1, 3), np.float32))).encode()
    return [plain, b"image_id\timage_w\timage_h\tnum_boxes\tboxes\tfeatures\n" + plain]


def read_tsv(ending, content, folder):
    data = folder / "data"
    if not data.exists():
        rows = [{"image_id": f"i{n}", "caption_id": f"{n}", "text": "x", "split": "train"} for n in range(2)]
        make_dataset(data, rows=rows)
        shutil.copy(data / "manifest.json", folder / "manifest")
    shutil.copy(folder / "manifest", data / "manifest.json")
    run_import("butd", put(folder, f"a.{ending}", content), ImportSettings(str(data)))


def arrow():
    import pyarrow

    schema = pyarrow.schema(
        [
            ("image", pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])),
            ("caption", pyarrow.list_(pyarrow.string())),
        ]
    )
    rows = [
        {"image": {"bytes": image_bytes(size=(4, 4)), "path": f"{n}.png"}, "caption": ["A dog.", "A cat."]}
        for n in range(3)
    ]
    buffer = io.BytesIO()
    with pyarrow.ipc.new_stream(buffer, schema) as stream:
        stream.write_batch(pyarrow.RecordBatch.from_pylist(rows, schema))
    return [buffer.getvalue()]


def read_arrow(content, folder):
    return imported("huggingface", put(folder / "saved", "data-00000.arrow", content).parent, folder)


def read_splits(content, folder):
    put(folder / "dict" / "train", "data.arrow", arrow()[0])
    return imported("huggingface", put(folder / "dict", "dataset_dict.json", content).parent, folder)


READERS = (
    Reader("regions tsv", tsv, lambda content, to: read_tsv("tsv", content, to)),
    Reader(
        "regions tsv.gz",
        lambda: [gzip.compress(one) for one in tsv()],
        lambda content, to: read_tsv("tsv.gz", content, to),
    ),
    Reader("arrow", arrow, read_arrow),
    Reader("arrow splits", lambda: [b'{"splits": ["train"]}'], read_splits, damage_json),
)
