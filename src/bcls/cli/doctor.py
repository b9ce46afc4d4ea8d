"""Takes out of a text what says who and where somebody is.

What was found, in sections of lines; as text and as JSON.

The files that a package brought, with their hashes.

What there is to compute on: processors, memory, accelerators.

Whether there is room to write, and permission.

Which versions are installed.

Which optional parts are installed, from the package's own list of requirements.

Whether packaged weights are the published ones.

Self-test: the loss against numbers worked out by hand, a few steps of training, kernels against the plain path.

Self-test: three drawn scenes are indexed, and each is found again.

Looks at everything, one section after another; what fails is a line of the report and ends nothing.

``bcls doctor``: what is installed and whether it works.
"""

import base64
import contextlib
import csv
import getpass
import io
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata, resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import bcls
from bcls._core.errors import fail
from bcls._core.extras import MissingExtraError, sha256_of
from bcls.cli.arguments import parse

if TYPE_CHECKING:
    from torch import Tensor

    from bcls.experiments.demo_model import Reader

# A whole path with at least one folder in it; the last part is what a reader needs. Dates, shares such as 3/4 and
# addresses on the web are no paths.
_UNIX = re.compile(r"(?<![\w.:/~-])~?/(?:[^/\n'\"`,;:()<>|]*/)+([^\s/'\"`,;:()<>|]*)")
_WINDOWS = re.compile(r"(?<!\w)[A-Za-z]:\\(?:[^\\\n'\"`,;:()<>|]*\\)*([^\s\\'\"`,;:()<>|]*)")
#: Names that say nothing about a person or a machine, but occur in other words' places.
_COMMON = {"", "root", "user", "admin", "runner", "localhost", "bcls", "python", "torch", "linux", "ubuntu"}


def without_places(text: str) -> str:
    """Replace folders by ``...``, and the names of the user and of the machine.

    Example:
        >>> without_places("expected /home/ada/.venv/lib/model.safetensors, got no such file")
        'expected .../model.safetensors, got no such file'
        >>> without_places("3/4 of 2.1 GB, see https://example.org/a/b")
        '3/4 of 2.1 GB, see https://example.org/a/b'
    """
    text = _WINDOWS.sub(r"...\\\1", _UNIX.sub(r".../\1", text))
    for name, instead in ((_user(), "USER"), (platform.node(), "HOST"), (platform.node().split(".")[0], "HOST")):
        if name.lower() not in _COMMON:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", instead, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        return ""


@dataclass(frozen=True)
class Line:
    """One thing that was looked at."""

    name: str
    """What it is."""
    value: str
    """What was found."""
    problem: str = ""
    """What is wrong and what to do; empty where nothing is."""


@dataclass(frozen=True)
class Section:
    """Lines that belong together."""

    title: str
    """What they are about."""
    lines: tuple[Line, ...]
    """The lines."""


@dataclass(frozen=True)
class Report:
    """Everything that was found; names of people, machines and folders are left out."""

    sections: tuple[Section, ...]
    """The sections, in the order in which they are shown."""

    @property
    def problems(self) -> list[str]:
        """What is wrong, in one line each."""
        return [
            without_places(f"{section.title}, {line.name}: {line.problem}")
            for section in self.sections
            for line in section.lines
            if line.problem
        ]

    def as_json(self) -> dict[str, Any]:
        """Plain values: the sections, and ``problems``."""
        sections = {
            section.title: {line.name: without_places(line.value) for line in section.lines}
            for section in self.sections
        }
        return {**sections, "problems": self.problems}

    def as_text(self) -> str:
        """Markdown that can be pasted into a bug report.

        Example:
            >>> print(Report((Section("disk", (Line("temporary folder", "2 GB free"),)),)).as_text())
            ## disk
            - temporary folder: 2 GB free
            <BLANKLINE>
            No problems found.
        """
        blocks = [
            "\n".join(
                [f"## {section.title}", *(f"- {line.name}: {without_places(line.value)}" for line in section.lines)]
            )
            for section in self.sections
        ]
        count = len(self.problems)
        found = [f"{count} problem{'s' * (count != 1)} found:", *(f"- {problem}" for problem in self.problems)]
        return "\n\n".join([*blocks, "\n".join(found) if count else "No problems found."])


class Recorded(NamedTuple):
    """A line of a RECORD."""

    path: PurePosixPath
    """Where the file lies, from the folder of packages."""
    mode: str
    """Name of the hash."""
    value: str
    """The hash, in base64 for names of files and without filling."""


def recorded(found: metadata.Distribution) -> Iterator[Recorded]:
    """Files of an installed package that have a hash.

    Read from its RECORD: ``Distribution.files`` leaves out files that are gone, from Python 3.12 on.

    Args:
        found: The package.
    """
    for row in csv.reader((found.read_text("RECORD") or "").splitlines()):
        mode, _, value = row[1].partition("=") if len(row) > 1 else ("", "", "")
        if value:
            yield Recorded(PurePosixPath(row[0]), mode, value)


GIB = 1 << 30


def devices() -> Section:
    """Cores and threads, memory, and every CUDA device with how much of its memory is free."""
    import torch

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limit = os.environ.get("OMP_NUM_THREADS")
    lines = [
        Line("processors", f"{os.cpu_count()}, of which this process may use {allowed}"),
        Line("threads of torch", f"{torch.get_num_threads()}{f' (OMP_NUM_THREADS={limit})' if limit else ''}"),
        Line("memory", _memory()),
    ]
    lines += [_gpu(number) for number in range(torch.cuda.device_count())] or [Line("CUDA devices", "none")]
    if torch.backends.mps.is_available():
        lines.append(Line("Apple GPU", "available"))
    return Section("devices", tuple(lines))


def _gpu(number: int) -> Line:
    import torch

    facts = torch.cuda.get_device_properties(number)
    name = f"cuda:{number}"
    about = f"{facts.name}, compute capability {facts.major}.{facts.minor}"
    try:
        free, total = torch.cuda.mem_get_info(number)
    except RuntimeError as error:
        return Line(name, about, f"its memory cannot be read ({error}); look at `nvidia-smi`")
    return Line(name, f"{about}, {free / GIB:.1f} of {total / GIB:.1f} GiB free")


def _memory() -> str:
    """Memory of the machine, or of the container where that is less."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return "unknown"
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        limit = "max"
    if limit.isdigit() and int(limit) < total:
        return f"{int(limit) / GIB:.1f} GiB (limit of the container)"
    return f"{total / GIB:.1f} GiB"


#: Bytes below which a run or an index is likely to fill the disk.
LEAST_FREE = GIB


def room() -> Section:
    """The current and the temporary folder; their names are nobody's business."""
    places = {"current folder": Path.cwd(), "temporary folder": Path(tempfile.gettempdir())}
    return Section("disk", tuple(look(name, folder) for name, folder in places.items()))


def look(name: str, folder: Path) -> Line:
    """Free space of a folder, and whether a file can be written there."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Line(name, "cannot be read", f"{error.strerror}; change to a folder that is there")
    value = f"{free / GIB:.1f} GiB free"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        remedy = "set TMPDIR to a folder of yours" if name.startswith("temporary") else "write elsewhere with --out"
        return Line(name, f"{value}, not writable", f"no file can be written there ({error.strerror}); {remedy}")
    if free < LEAST_FREE:
        return Line(name, value, f"less than {LEAST_FREE / GIB:g} GiB free; make room before a run")
    return Line(name, f"{value}, writable")


#: The packages whose versions explain most bug reports, beside the extras' own.
_PACKAGES = ("numpy", "scipy", "pillow", "safetensors", "accelerate", "jsonargparse")


def version_of(package: str) -> str | None:
    """The installed version of a package, None where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> Section:
    """Python, this package, torch with what it was built for, and those it stands on."""
    import torch

    lines = [
        Line("bcls", bcls.__version__, _mismatch()),
        Line("python", f"{platform.python_version()} ({platform.python_implementation()})"),
        Line("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        Line("torch", torch.__version__),
        Line("CUDA of torch", torch.version.cuda or "none, built for CPUs"),
        Line("NVIDIA driver", _driver() or "none found"),
        Line("triton", version_of("triton") or "not installed"),
        *(_package(name) for name in _PACKAGES),
    ]
    return Section("versions", tuple(lines))


def _package(name: str) -> Line:
    version = version_of(name)
    if version is not None:
        return Line(name, version)
    return Line(name, "not installed", f"bcls needs it; pip install {name}")


def _mismatch() -> str:
    """A package whose description is another version's is a mix of two installs."""
    installed = version_of("bcls")
    if installed in {None, bcls.__version__}:
        return ""
    return f"the code is {bcls.__version__}, its description says {installed}; pip install --force-reinstall bcls"


def _driver() -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(run.stdout.split()), None)


#: What each extra is for; which packages it brings is told by the package's metadata alone.
PURPOSES = {
    "arrow": "reading Parquet files and saved Hugging Face datasets",
    "caption-metrics": "CIDEr-D, METEOR and SPICE as labels",
    "eval": "the ground truth of ECCV Caption and CxC",
    "hub": "models from the Hugging Face Hub",
    "index": "an index of photos",
    "jobs": "feature extraction over several machines",
    "kernels": "fused losses on NVIDIA GPUs",
    "lora": "training CLIP with LoRA",
    "milvus": "an index in Milvus",
    "onnx": "exporting models",
    "photos": "features of photos by packaged networks",
    "plots": "drawings in reports",
    "text": "labels and queries by packaged text encoders",
    "track": "curves in TensorBoard",
    "web": "search in the browser",
}
#: Extras that only gather others, or serve those who work on the package.
_NOT_FOR_A_USE = {"all", "dev"}


def brings(requirements: Iterable[str]) -> dict[str, list[str]]:
    """The packages of each extra.

    Args:
        requirements: As ``importlib.metadata.requires`` gives them.

    Example:
        >>> brings(["numpy>=1.26", "faiss-cpu>=1.9; extra == 'index'", 'bcls[index]; extra == "all"'])
        {'index': ['faiss-cpu']}
    """
    found: dict[str, list[str]] = {}
    for requirement in requirements:
        extra = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", requirement)
        name = re.match(r"[\w.-]+", requirement)
        if extra and name and extra[1] not in _NOT_FOR_A_USE:
            found.setdefault(extra[1], []).append(name[0])
    return found


def extras() -> Section:
    """Each extra with its versions, or what it would be for; one that is missing is no problem."""
    try:
        listed = brings(metadata.requires("bcls") or ())
    except metadata.PackageNotFoundError:
        return Section("extras", (Line("bcls", "runs from its source and is not installed: the extras are not known"),))
    return Section("extras", tuple(_line(extra, packages) for extra, packages in sorted(listed.items())))


def _line(extra: str, packages: list[str]) -> Line:
    purpose = PURPOSES.get(extra, "")
    versions = {package: version_of(package) for package in packages}
    missing = [package for package, version in versions.items() if version is None]
    if len(missing) == len(packages):
        return Line(extra, f'not installed, for {purpose}: pip install "bcls[{extra}]"')
    if missing:
        return Line(extra, f'without {", ".join(missing)}, for {purpose}: pip install "bcls[{extra}]"')
    return Line(extra, ", ".join(f"{package} {version}" for package, version in versions.items()))


#: The weights of the model that ships in the package.
PHOTO = "models/photo/model.safetensors"


def weights() -> Section:
    """Every packaged network that is installed, checked as it is when it is loaded."""
    checks: dict[str, Callable[[], str]] = {
        "minilm": _minilm,
        "wordllama": _wordllama,
        **{name: _backbone(name) for name in ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")},
    }
    return Section("weights", (*(_line_weights(name, check) for name, check in checks.items()), photo()))


def _line_weights(name: str, check: Callable[[], str]) -> Line:
    try:
        return Line(name, f"as published, sha256 {check()[:12]}")
    except MissingExtraError:
        return Line(name, "not installed")
    except (ValueError, ImportError) as error:
        return Line(name, "cannot be used", str(error))


def _minilm() -> str:
    from bcls._core.extras import MINILM_SHA256, minilm_folder

    minilm_folder()
    return MINILM_SHA256


def _wordllama() -> str:
    from bcls.labels.encoders import WEIGHTS_SHA256, WordLlamaEncoder

    WordLlamaEncoder()
    return WEIGHTS_SHA256


def _backbone(name: str) -> Callable[[], str]:
    def check() -> str:
        from bcls.features.backbones import load_backbone

        return load_backbone(name).weights

    return check


def photo() -> Line:
    """The model ``photo``: its hash against the one that was written when the wheel was made."""
    with resources.as_file(resources.files("bcls")) as folder:
        path = Path(folder) / PHOTO
        if not path.is_file():
            return Line("photo", "not part of this install")
        found = sha256_of(path)
    recorded = dict(_recorded()).get(f"bcls/{PHOTO}")
    if recorded is None:
        return Line("photo", f"sha256 {found[:12]}, and no record of an install to compare it with")
    if found != recorded:
        remedy = "pip install --force-reinstall --no-deps bcls"
        return Line("photo", "damaged", f"expected sha256 {recorded}, got {found}; {remedy}")
    return Line("photo", f"as installed, sha256 {found[:12]}")


def _recorded() -> Iterator[tuple[str, str]]:
    """Name and sha256 of the files that the wheel brought."""
    try:
        found = metadata.distribution("bcls")
    except metadata.PackageNotFoundError:
        return
    for file in recorded(found):
        if file.mode == "sha256":
            padded = file.value + "=" * (-len(file.value) % 4)
            yield str(file.path), base64.urlsafe_b64decode(padded).hex()


_REMEDY = "install torch again; if that does not help, please report this"


def try_loss(device: str) -> str:
    r"""BCLS of two images and two captions, by hand.

    With :math:`s = ((0.9, 0.3), (0.6, 0.55))` and labels 0.25 off the diagonal only the second image ranks wrongly.
    One negative makes soft negatives hard ones: the binary half is :math:`0.6 - 0.55 + 0.2 = 0.25`. The wrong order
    costs :math:`0.05` in the 6 of 18 windows that begin above 0.25, so the continuous half is :math:`0.05 / 3`. Every
    hinge that is open has slope 1: :math:`1 + 1/3` on the negative, the opposite on the positive.
    """
    import torch

    from bcls.losses import BCLSLoss

    similarity = torch.tensor([[0.9, 0.3], [0.6, 0.55]], device=device, requires_grad=True)
    relevance = torch.tensor([[1.0, 0.25], [0.25, 1.0]], device=device)
    value = BCLSLoss(reduction="sum")(similarity, relevance)
    (slope,) = torch.autograd.grad(value, similarity)
    by_hand = torch.tensor([[0.0, 0.0], [4 / 3, -4 / 3]])
    _compare("the loss", value.detach(), torch.tensor(0.25 + 0.05 / 3))
    _compare("its gradient", slope, by_hand)
    return f"{value.item():.4f}, as worked out by hand, and its gradient"


def try_training(device: str) -> str:
    """A small VSE++ learns six pairs: the loss must come down."""
    import torch

    from bcls.losses import BCLSLoss
    from bcls.models import build
    from bcls.models.padded import Padded

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build({"name": "vsepp", "words": 12, "features": 8, "width": 16}).to(device).train()
        features = torch.randn(6, 4, 8, device=device)
        words = torch.arange(12, device=device).reshape(6, 2)
    lengths, loss = torch.full((6,), 2, device=device), BCLSLoss()
    relevance = torch.eye(6, device=device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    values = []
    for _ in range(10):
        scores = model.scores(model.image_codes(Padded(features)), model.text_codes(Padded(words, lengths)))
        value = loss(scores, relevance)
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        values.append(value.item())
    if not values[-1] < values[0]:
        fail("training", f"a loss below {values[0]:.4f} after 10 steps", f"{values[-1]:.4f}", _REMEDY)
    return f"10 steps bring the loss from {values[0]:.3f} to {values[-1]:.3f}"


def try_kernels() -> str:
    """The fused kernels against the plain path on the GPU, in value and gradient."""
    import torch

    from bcls.kernels import usable, without_kernels
    from bcls.losses import BCLSLoss

    generator = torch.Generator().manual_seed(0)
    similarity = (torch.randn(96, 96, generator=generator) / 3).cuda().requires_grad_()
    relevance = (torch.rand(96, 96, generator=generator) * 2 - 1).fill_diagonal_(1).cuda()
    if not usable(similarity):
        return 'not tried, the kernels need triton: pip install "bcls[kernels]"'
    loss = BCLSLoss(reduction="sum")
    fused = loss(similarity, relevance)
    (slope,) = torch.autograd.grad(fused, similarity)
    with without_kernels():
        plain = loss(similarity, relevance)
        (expected,) = torch.autograd.grad(plain, similarity)
    _compare("the fused loss", fused.detach(), plain.detach().cpu())
    _compare("the gradient of the fused loss", slope, expected.cpu())
    return "equal to the plain path in value and gradient"


def _compare(what: str, found: "Tensor", expected: "Tensor") -> None:
    import torch

    found = found.detach().cpu()
    if not torch.allclose(found, expected, rtol=1e-4, atol=1e-4):
        gap = (found - expected).abs().max().item()
        fail(what, "the right numbers", f"others, the largest difference is {gap:.3g}", _REMEDY)


def try_search() -> str:
    """Index three scenes with a small network of fresh weights, and search with each picture.

    Raises:
        ValueError: A picture is not the first answer to itself.
        MissingExtraError: Without the extra ``index``.
    """
    from bcls._core.extras import require

    require("faiss", "index", "an index of photos")
    import torch

    from bcls.data.synthetic import make_scenes, render
    from bcls.experiments.demo_model import ScenesConfig, ScenesModel
    from bcls.search.build import build_index
    from bcls.search.index import IndexSettings
    from bcls.search.service import Service

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

    from bcls.experiments.demo_model import TEXT_WIDTH, Reader

    class Letters(Reader):
        def __call__(self, texts: Sequence[str]) -> "Tensor":
            counts = torch.zeros(len(texts), TEXT_WIDTH)
            for row, text in enumerate(texts):
                for character in text:
                    counts[row, ord(character) % TEXT_WIDTH] += 1
            return torch.nn.functional.normalize(counts, dim=1)

    return Letters()


def examine() -> Report:
    """Look at versions, devices, extras, weights and disks, and try the main parts out.

    Returns:
        What was found. Missing optional parts are no problems.
    """
    looks: dict[str, Callable[[], Section]] = {
        "versions": versions,
        "devices": devices,
        "extras": extras,
        "disk": room,
        "self-test": self_test,
        "weights": weights,
    }
    return Report(tuple(_section(title, look) for title, look in looks.items()))


def self_test() -> Section:
    """Loss and training on every kind of device that is there, an index, and the kernels where there is a GPU."""
    import torch

    lines = []
    for device in ("cpu", *(("cuda",) if torch.cuda.is_available() else ())):
        lines.append(attempt(f"loss on {device}", partial(try_loss, device)))
        lines.append(attempt(f"training on {device}", partial(try_training, device)))
    lines.append(attempt("index and search", try_search))
    if torch.cuda.is_available():
        lines.append(attempt("kernels", try_kernels))
    return Section("self-test", tuple(lines))


def attempt(name: str, job: Callable[[], str]) -> Line:
    """Run one test; whatever it raises becomes the line's problem."""
    started = time.monotonic()
    try:
        found = job()
    except MissingExtraError as error:
        return Line(name, f"not tried: {error}")
    except Exception as error:  # a broken install can break anywhere, and the report must still come
        return Line(name, "failed", f"{type(error).__name__}: {' '.join(str(error).split())}")
    return Line(name, f"{found} ({time.monotonic() - started:.1f} s)")


def _section(title: str, look: Callable[[], Section]) -> Section:
    try:
        return look()
    except Exception as error:  # as above
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Section(title, (Line("all", "could not be looked at", problem),))


ABOUT = (
    "Looks at versions, devices, extras, packaged weights and disks, and tries the main parts out; takes seconds. The "
    "output can be pasted into a bug report: names of people, machines and folders are left out. Exits with 1 where "
    "there are problems; optional parts that are not installed are none."
)


@dataclass(frozen=True)
class DoctorSettings:
    """Settings of ``bcls doctor``."""

    json: bool = False
    """Print the report as JSON."""


def main(arguments: Sequence[str]) -> int:
    """Run the verb; see :func:`bcls.cli.main.main`."""
    settings = parse("doctor", ABOUT, DoctorSettings, arguments)
    # Here, not above: `--help` need not wait for it.

    report = examine()
    print(json.dumps(report.as_json(), indent=1) if settings.json else report.as_text())
    return 1 if report.problems else 0
