"""``bcls doctor``: installed versions, devices, extras, weights, and a self-test, as text for a bug report."""

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bcls
from bcls._core.errors import fail, reason_of
from bcls._core.extras import MissingExtraError, sha256_of, version_of
from bcls.cli.arguments import parse

if TYPE_CHECKING:
    from torch import Tensor

ABOUT = (
    "Report versions, devices, extras, disk space and packaged weights, and run a short self-test. The output can be "
    "pasted into a bug report: user names, host names and folders are redacted. The exit code is 1 if there are "
    "problems. A missing extra is not a problem."
)
GIB = 1 << 30
#: Free bytes below which a run or an index is likely to fill the disk.
LEAST_FREE = GIB
#: Core dependencies whose versions are reported.
_PACKAGES = ("numpy", "scipy", "pillow", "safetensors", "jsonargparse")
#: Weights of the model that ships in the package.
PHOTO = "models/photo/model.safetensors"
#: What each extra is for. The packages of an extra are read from the metadata of the installed package.
PURPOSES = {
    "arrow": "Parquet files and saved Hugging Face datasets",
    "caption-metrics": "CIDEr-D, METEOR and SPICE as labels",
    "eval": "the ground truth of ECCV Caption and CxC",
    "heif": "HEIC and HEIF photos",
    "hub": "models from the Hugging Face Hub",
    "jobs": "feature extraction on a Ray cluster",
    "kernels": "fused losses on NVIDIA GPUs",
    "lora": "fine-tuning with LoRA",
    "milvus": "photo indexes in Milvus",
    "onnx": "ONNX export",
    "photos": "packaged image networks",
    "reports": "HTML reports and charts",
    "search": "photo search",
    "text": "packaged text encoders",
    "track": "TensorBoard logs",
    "train": "training",
    "web": "photo search in the browser",
}
_REINSTALL_TORCH = "install torch again; if that does not help, please report this"


@dataclass(frozen=True)
class DoctorSettings:
    """Settings of ``bcls doctor``.

    Attributes:
        json: Print the report as JSON.
    """

    json: bool = False


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Attributes:
        name: What was checked.
        value: The result.
        problem: What is wrong and what to do, or empty.
    """

    name: str
    value: str
    problem: str = ""


def main(arguments: Sequence[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`."""
    settings = parse("doctor", ABOUT, DoctorSettings, arguments)
    report = examine()
    print(json.dumps(as_json(report), indent=1) if settings.json else as_text(report))
    return 1 if problems(report) else 0


def examine() -> dict[str, list[Check]]:
    """Run all checks.

    Returns:
        The checks of each section. A section that raises becomes a single failed check.
    """
    sections = {"versions": versions, "devices": devices, "extras": extras, "disk": disk}
    sections |= {"self-test": self_test, "weights": weights}
    report = {}
    for title, section in sections.items():
        try:
            report[title] = section()
        except Exception as error:  # a broken installation can fail anywhere, and the report is needed all the more
            report[title] = [Check("all", "not available", f"{type(error).__name__}: {reason_of(error)}")]
    return report


def problems(report: dict[str, list[Check]]) -> list[str]:
    """One line for each problem, redacted."""
    return [
        redact(f"{title}, {check.name}: {check.problem}")
        for title, checks in report.items()
        for check in checks
        if check.problem
    ]


def as_json(report: dict[str, list[Check]]) -> dict[str, Any]:
    """The sections as plain dicts, and a list ``problems``."""
    sections = {title: {check.name: redact(check.value) for check in checks} for title, checks in report.items()}
    return {**sections, "problems": problems(report)}


def as_text(report: dict[str, list[Check]]) -> str:
    """The report as Markdown.

    Example:
        >>> print(as_text({"disk": [Check("temporary folder", "2 GB free")]}))
        ## disk
        - temporary folder: 2 GB free
        <BLANKLINE>
        No problems found.
    """
    blocks = [
        "\n".join([f"## {title}", *(f"- {check.name}: {redact(check.value)}" for check in checks)])
        for title, checks in report.items()
    ]
    found = problems(report)
    heading = f"{len(found)} problem{'s' * (len(found) != 1)} found:"
    return "\n\n".join([*blocks, "\n- ".join([heading, *found]) if found else "No problems found."])


# Absolute paths with at least one folder. Dates, fractions such as 3/4 and URLs do not match.
_UNIX = re.compile(r"(?<![\w.:/~-])~?/(?:[^/\n'\"`,;:()<>|]*/)+([^\s/'\"`,;:()<>|]*)")
_WINDOWS = re.compile(r"(?<!\w)[A-Za-z]:\\(?:[^\\\n'\"`,;:()<>|]*\\)*([^\s\\'\"`,;:()<>|]*)")
#: User and host names that identify no one and occur in ordinary text.
_COMMON = {"", "root", "user", "admin", "runner", "localhost", "bcls", "python", "torch", "linux", "ubuntu"}


def redact(text: str) -> str:
    """Redact user names, hosts and folders. File names are kept.

    Example:
        >>> redact("expected /home/ada/.venv/lib/model.safetensors, got no such file")
        'expected .../model.safetensors, got no such file'
        >>> redact("3/4 of 2.1 GB, see https://example.org/a/b")
        '3/4 of 2.1 GB, see https://example.org/a/b'
    """
    text = _WINDOWS.sub(r"...\\\1", _UNIX.sub(r".../\1", text))
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        user = ""
    host = platform.node()
    for name, instead in ((user, "USER"), (host, "HOST"), (host.split(".")[0], "HOST")):
        if name.lower() not in _COMMON:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", instead, text)
    return text


def versions() -> list[Check]:
    """Versions of Python, bcls, torch and the core dependencies."""
    installed, mismatch = version_of("bcls"), ""
    if installed not in {None, bcls.__version__}:
        mismatch = f"the code is {bcls.__version__}, the metadata is {installed}; pip install --force-reinstall bcls"
    checks = [
        Check("bcls", bcls.__version__, mismatch),
        Check("python", f"{platform.python_version()} ({platform.python_implementation()})"),
        Check("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        Check("NVIDIA driver", _driver() or "not found"),
        Check("triton", version_of("triton") or "not installed"),
    ]
    if _has_torch():
        import torch

        checks.append(Check("torch", torch.__version__))
        checks.append(Check("CUDA of torch", torch.version.cuda or "none, CPU build"))
    else:
        checks.append(Check("torch", 'not installed, needed for training: pip install "bcls[train]"'))
    for name in _PACKAGES:
        version = version_of(name)
        missing = "" if version else f"bcls requires it; pip install {name}"
        checks.append(Check(name, version or "not installed", missing))
    return checks


def _has_torch() -> bool:
    return find_spec("torch") is not None


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


def devices() -> list[Check]:
    """Processors, memory and CUDA devices."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    checks = [Check("processors", f"{os.cpu_count()}, {allowed} available"), Check("memory", _memory())]
    if not _has_torch():
        return checks
    import torch

    limit = os.environ.get("OMP_NUM_THREADS", "not set")
    checks.append(Check("torch threads", f"{torch.get_num_threads()} (OMP_NUM_THREADS {limit})"))
    checks += [_gpu(number) for number in range(torch.cuda.device_count())] or [Check("CUDA devices", "none")]
    if torch.backends.mps.is_available():
        checks.append(Check("Apple GPU", "available"))
    return checks


def _gpu(number: int) -> Check:
    import torch

    properties = torch.cuda.get_device_properties(number)
    name = f"cuda:{number}"
    about = f"{properties.name}, compute capability {properties.major}.{properties.minor}"
    try:
        free, total = torch.cuda.mem_get_info(number)
    except RuntimeError as error:
        return Check(name, about, f"its memory cannot be queried ({error}); see `nvidia-smi`")
    return Check(name, f"{about}, {free / GIB:.1f} of {total / GIB:.1f} GiB free")


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return "unknown"
    with contextlib.suppress(OSError):
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        if limit.isdigit() and int(limit) < total:
            return f"{int(limit) / GIB:.1f} GiB (container limit)"
    return f"{total / GIB:.1f} GiB"


def packages_by_extra(requirements: Iterable[str]) -> dict[str, list[str]]:
    """The packages of each extra.

    Args:
        requirements: As returned by ``importlib.metadata.requires``.

    Example:
        >>> packages_by_extra(["numpy>=1.26", "faiss-cpu>=1.9; extra == 'search'", 'bcls[search]; extra == "all"'])
        {'search': ['faiss-cpu']}
    """
    found: dict[str, list[str]] = {}
    for requirement in requirements:
        extra = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", requirement)
        name = re.match(r"[\w.-]+", requirement)
        if extra and name and extra[1] not in {"all", "dev"} and name[0] != "bcls":
            found.setdefault(extra[1], []).append(name[0])
    return found


def extras() -> list[Check]:
    """Installed packages of each extra, or what the extra is for."""
    try:
        listed = packages_by_extra(metadata.requires("bcls") or ())
    except metadata.PackageNotFoundError:
        return [Check("bcls", "not installed, runs from source: the extras are unknown")]
    checks = []
    for extra, packages in sorted(listed.items()):
        found = {package: version_of(package) for package in packages}
        missing = [package for package, version in found.items() if version is None]
        value = ", ".join(f"{package} {version}" for package, version in found.items())
        if missing:
            state = "not installed" if len(missing) == len(packages) else f"without {', '.join(missing)}"
            value = f'{state}, for {PURPOSES.get(extra, "")}: pip install "bcls[{extra}]"'
        checks.append(Check(extra, value))
    return checks


def disk() -> list[Check]:
    """Free space and write permission of the current and the temporary folder."""
    temporary = Path(tempfile.gettempdir())
    return [check_folder("current folder", Path.cwd()), check_folder("temporary folder", temporary)]


def check_folder(name: str, folder: Path) -> Check:
    """Free space of a folder, and whether a file can be written to it."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(name, "not readable", f"{error.strerror}; change to an existing folder")
    value = f"{free / GIB:.1f} GiB free"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        hint = "set TMPDIR to a writable folder" if name.startswith("temporary") else "write elsewhere with --out"
        return Check(name, f"{value}, not writable", f"cannot write files there ({error.strerror}); {hint}")
    if free < LEAST_FREE:
        return Check(name, value, f"less than {LEAST_FREE / GIB:g} GiB free; free some space before a run")
    return Check(name, f"{value}, writable")


def weights() -> list[Check]:
    """SHA-256 of every installed packaged network, as checked when it is loaded."""
    checks = []
    for name in ("minilm", "wordllama", "efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"):
        try:
            checks.append(Check(name, f"as published, sha256 {_verified_hash(name)[:12]}"))
        except MissingExtraError:
            checks.append(Check(name, "not installed"))
        except (ValueError, ImportError) as error:
            checks.append(Check(name, "not usable", str(error)))
    return [*checks, photo_weights()]


def _verified_hash(name: str) -> str:
    from bcls._core import extras

    if name == "minilm":
        extras.minilm_folder()
        return extras.MINILM_SHA256
    if name == "wordllama":
        from bcls.labels.encoders import WEIGHTS_SHA256, WordLlamaEncoder

        WordLlamaEncoder()
        return WEIGHTS_SHA256
    if not _has_torch():
        raise MissingExtraError("torch is not installed")
    from bcls.features.backbones import load_backbone

    return load_backbone(name).weights


def photo_weights() -> Check:
    """The weights of ``load("photo")``, compared with the hash in the wheel's RECORD."""
    with resources.as_file(resources.files("bcls")) as folder:
        path = Path(folder) / PHOTO
        if not path.is_file():
            return Check("photo", "not part of this installation")
        found = sha256_of(path)
    expected = _recorded_hash(f"bcls/{PHOTO}")
    if expected is None:
        return Check("photo", f"sha256 {found[:12]}, no RECORD to compare with")
    if found != expected:
        hint = "pip install --force-reinstall --no-deps bcls"
        return Check("photo", "damaged", f"expected sha256 {expected}, got {found}; {hint}")
    return Check("photo", f"as installed, sha256 {found[:12]}")


def _recorded_hash(name: str) -> str | None:
    """SHA-256 of an installed file in RECORD. ``Distribution.files`` omits missing files from Python 3.12 on."""
    try:
        record = metadata.distribution("bcls").read_text("RECORD") or ""
    except metadata.PackageNotFoundError:
        return None
    for row in csv.reader(record.splitlines()):
        if row[0] == name and row[1].startswith("sha256="):
            value = row[1].removeprefix("sha256=")
            return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
    return None


def self_test() -> list[Check]:
    """Loss and training on each kind of device, photo search, and the kernels on a GPU."""
    if not _has_torch():
        return [Check("loss and training", 'not run: torch is not installed; pip install "bcls[train]"')]
    import torch

    cuda = torch.cuda.is_available()
    tests: dict[str, Callable[[], str]] = {}
    for device in ("cpu", "cuda")[: 1 + cuda]:
        tests[f"loss on {device}"] = partial(check_loss, device)
        tests[f"training on {device}"] = partial(check_training, device)
    tests["index and search"] = check_search
    if cuda:
        tests["kernels"] = check_kernels
    return [attempt(name, test) for name, test in tests.items()]


def attempt(name: str, test: Callable[[], str]) -> Check:
    """Run one test. An exception becomes the problem of the check, a missing extra does not."""
    started = time.monotonic()
    try:
        result = test()
    except MissingExtraError as error:
        return Check(name, f"not run: {error}")
    except Exception as error:  # a broken installation can fail anywhere
        return Check(name, "failed", f"{type(error).__name__}: {reason_of(error)}")
    return Check(name, f"{result} ({time.monotonic() - started:.1f} s)")


def check_loss(device: str) -> str:
    r"""Compare BCLS of two images and two captions with a value computed by hand.

    With :math:`s = ((0.9, 0.3), (0.6, 0.55))` and labels of 0.25 off the diagonal, only the second image is ranked
    wrongly. With one negative the soft negative equals the hard one: the binary term is
    :math:`0.6 - 0.55 + 0.2 = 0.25`. The wrong order costs :math:`0.05` in the 6 of 18 windows whose lower edge is above
    0.25, so the continuous term is :math:`0.05 / 3`. The gradient of each active hinge is 1: :math:`1 + 1/3` for the
    negative and the opposite for the positive.
    """
    import torch

    from bcls.experiments.bench import step
    from bcls.losses import BCLSLoss

    similarity = torch.tensor([[0.9, 0.3], [0.6, 0.55]], device=device, requires_grad=True)
    relevance = torch.tensor([[1.0, 0.25], [0.25, 1.0]], device=device)
    found = step(BCLSLoss(reduction="sum"), (similarity,), relevance)
    _compare(found, (torch.tensor(0.25 + 0.05 / 3), torch.tensor([[0.0, 0.0], [4 / 3, -4 / 3]])))
    return f"{found[0].item():.4f}, value and gradient as computed by hand"


def check_training(device: str) -> str:
    """Train a small VSE++ on six pairs for ten steps. The loss must decrease."""
    import torch

    from bcls.losses import BCLSLoss
    from bcls.models import build
    from bcls.models.padded import Padded

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build({"name": "vsepp", "words": 12, "features": 8, "width": 16}).to(device).train()
        features = torch.randn(6, 4, 8, device=device)
    words = torch.arange(12, device=device).reshape(6, 2)
    lengths, relevance = torch.full((6,), 2, device=device), torch.eye(6, device=device)
    loss, optimizer = BCLSLoss(), torch.optim.Adam(model.parameters(), lr=0.01)
    values = []
    for _ in range(10):
        scores = model.scores(model.image_codes(Padded(features)), model.text_codes(Padded(words, lengths)))
        value = loss(scores, relevance)
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        values.append(value.item())
    if not values[-1] < values[0]:
        fail("training", f"a loss below {values[0]:.4f} after 10 steps", f"{values[-1]:.4f}", _REINSTALL_TORCH)
    return f"the loss decreases from {values[0]:.3f} to {values[-1]:.3f} in 10 steps"


def check_kernels() -> str:
    """Compare the fused kernels with the plain path on the GPU, in value and gradient."""
    import torch

    from bcls.experiments.bench import matrices, plain, step
    from bcls.losses import BCLSLoss
    from bcls.losses.backends import can_fuse

    similarity, relevance = matrices(96, torch.device("cuda"))
    if not can_fuse(similarity):
        return 'not run, the kernels need triton: pip install "bcls[kernels]"'
    loss = BCLSLoss(reduction="sum")
    _compare(step(loss, (similarity,), relevance), step(plain(loss), (similarity,), relevance))
    return "value and gradient equal the plain path"


def _compare(found: "tuple[Tensor, ...]", expected: "tuple[Tensor, ...]") -> None:
    """Compare the value and the gradient of a loss with the reference."""
    for name, one, reference in zip(("loss", "gradient"), found, expected, strict=True):
        gap = (one.cpu() - reference.cpu()).abs()
        if not (gap <= 1e-4 + 1e-4 * reference.cpu().abs()).all():
            got = f"a maximum difference of {gap.max().item():.3g}"
            fail(name, "the reference values", got, _REINSTALL_TORCH)


def check_search() -> str:
    """Index three synthetic scenes with an untrained model, and search with each image.

    Raises:
        ValueError: An image is not its own first result.
        MissingExtraError: The extra ``search`` is not installed.
    """
    from bcls._core.extras import require

    require("faiss", "search", "a photo index")
    import torch

    from bcls.data.synthetic import make_scenes, render
    from bcls.models.scenes import TEXT_WIDTH, CaptionReader, ScenesConfig, ScenesModel
    from bcls.search.build import IndexSettings, build_index
    from bcls.search.service import Service

    class RandomVectors(CaptionReader):
        """Draws vectors. MiniLM takes seconds to load and is not needed here."""

        def __call__(self, texts: Sequence[str]) -> "Tensor":
            generator = torch.Generator().manual_seed(0)
            return torch.nn.functional.normalize(torch.randn(len(texts), TEXT_WIDTH, generator=generator), dim=1)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ScenesModel(ScenesConfig(side=48, channels=4, width=16), reader=RandomVectors()).eval()
    with tempfile.TemporaryDirectory(prefix="bcls-doctor-") as name:
        photos, index = Path(name) / "photos", Path(name) / "index"
        photos.mkdir()
        for number, scene in enumerate(make_scenes(3, seed=0).scenes):
            render(scene, 48).save(photos / f"{number}.png")
        settings = IndexSettings(out=str(index), model="self-test", captions=False, workers=1)
        with contextlib.redirect_stderr(io.StringIO()):  # hides the progress bars
            build_index(photos, settings, model=model)
        with Service(index, model) as service:
            for image in sorted(photos.iterdir()):
                first = service.search_image(image.read_bytes(), 1).hits[0]
                if Path(first.path).name != image.name:
                    fail("search", f"{image.name} as its own first result", first.path, "please report this")
    return "3 synthetic scenes indexed and found"
