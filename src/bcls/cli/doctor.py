"""``bcls doctor``: installed versions, devices, extras, weights, and a self-test, as text for a bug report."""

import base64
import contextlib
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
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bcls
from bcls._core.errors import fail, reason_of
from bcls._core.extras import MissingExtraError, cpu_count, minilm_folder, require, sha256_of, version_of
from bcls.cli.arguments import parse

if TYPE_CHECKING:
    from torch import Tensor

GIB = 1 << 30
#: Free bytes below which a run or an index is likely to fill the disk.
LEAST_FREE = GIB
#: Core dependencies whose versions are reported.
_PACKAGES = ("numpy", "pillow", "safetensors", "jsonargparse")
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
    """Report versions, devices, extras, disk space and packaged weights, and run a short self-test.

    The output can be pasted into a bug report: user names, host names and folders are redacted. The exit code is 1
    if there are problems. A missing extra is not a problem.

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


def main(arguments: list[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`."""
    settings = parse("doctor", DoctorSettings, arguments)
    report = as_json(examine())
    print(json.dumps(report, indent=1) if settings.json else as_text(report))
    return 1 if report["problems"] else 0


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


def as_json(report: dict[str, list[Check]]) -> dict[str, Any]:
    """The sections as plain dicts, and a list ``problems``; all of it redacted."""
    sections = {title: {check.name: redact(check.value) for check in checks} for title, checks in report.items()}
    every = [(title, check) for title, checks in report.items() for check in checks]
    problems = [redact(f"{title}, {check.name}: {check.problem}") for title, check in every if check.problem]
    return {**sections, "problems": problems}


def as_text(report: dict[str, Any]) -> str:
    """The report of :func:`as_json` as Markdown.

    Example:
        >>> print(as_text({"disk": {"temporary folder": "2 GB free"}, "problems": []}))
        ## disk
        - temporary folder: 2 GB free
        <BLANKLINE>
        No problems found.
    """
    *sections, (_, problems) = report.items()
    blocks = ["\n- ".join([f"## {title}", *map(": ".join, checks.items())]) for title, checks in sections]
    heading = f"{len(problems)} problem{'s' * (len(problems) != 1)} found:"
    return "\n\n".join([*blocks, "\n- ".join([heading, *problems]) if problems else "No problems found."])


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

        checks += [Check("torch", torch.__version__), Check("CUDA of torch", torch.version.cuda or "none, CPU build")]
    else:
        checks.append(Check("torch", 'not installed, needed for training: pip install "bcls[train]"'))
    found = {name: version_of(name) for name in _PACKAGES}
    missing = {name: f"bcls requires it; pip install {name}" for name, version in found.items() if version is None}
    return checks + [Check(name, version or "not installed", missing.get(name, "")) for name, version in found.items()]


def _has_torch() -> bool:
    return find_spec("torch") is not None


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(run.stdout.split()), None)


def devices() -> list[Check]:
    """Processors, memory and CUDA devices."""
    checks = [Check("processors", f"{os.cpu_count()}, {cpu_count()} available")]
    if not _has_torch():
        return checks
    import torch

    from bcls.training.memory import free_bytes

    checks.append(Check("memory", f"{free_bytes(torch.device('cpu')) / GIB:.1f} GiB free"))
    limit = os.environ.get("OMP_NUM_THREADS", "not set")
    checks.append(Check("torch threads", f"{torch.get_num_threads()} (OMP_NUM_THREADS {limit})"))
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        free, total = (size / GIB for size in torch.cuda.mem_get_info(number))
        about = f"{properties.name}, compute capability {properties.major}.{properties.minor}"
        checks.append(Check(f"cuda:{number}", f"{about}, {free:.1f} of {total:.1f} GiB free"))
    if not torch.cuda.device_count():
        checks.append(Check("CUDA devices", "none"))
    if torch.backends.mps.is_available():
        checks.append(Check("Apple GPU", "available"))
    return checks


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
            value = f'{state}, for {PURPOSES[extra]}: pip install "bcls[{extra}]"'
        checks.append(Check(extra, value))
    return checks


def disk() -> list[Check]:
    """Free space and write permission of the current and the temporary folder."""
    temporary = Path(tempfile.gettempdir())
    return [check_folder("current folder", Path.cwd()), check_folder("temporary folder", temporary)]


def check_folder(name: str, folder: Path) -> Check:
    """Free space of a folder, and whether a file can be written to it."""
    value = "not readable"
    try:
        free = shutil.disk_usage(folder).free
        value = f"{free / GIB:.1f} GiB free, not writable"
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        hint = "set TMPDIR to a writable folder" if name.startswith("temporary") else "write elsewhere with --out"
        return Check(name, value, f"cannot write files there ({error.strerror}); {hint}")
    low = f"less than {LEAST_FREE / GIB:g} GiB free; free some space before a run"
    return Check(name, value.replace("not writable", "writable"), low if free < LEAST_FREE else "")


def weights() -> list[Check]:
    """SHA-256 of every installed packaged network, as checked when it is loaded."""
    checks = []
    for name in ("minilm", "wordllama", "efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"):
        try:
            _load_weights(name)
            checks.append(Check(name, "as published"))
        except MissingExtraError:
            checks.append(Check(name, "not installed"))
        except (ValueError, ImportError) as error:
            checks.append(Check(name, "not usable", str(error)))
    return [*checks, photo_weights()]


def _load_weights(name: str) -> None:
    if name == "minilm":
        minilm_folder()
    elif name == "wordllama":
        from bcls.labels.encoders import WordLlamaEncoder

        WordLlamaEncoder()
    elif _has_torch():
        from bcls.features.backbones import load_backbone

        load_backbone(name)
    else:
        raise MissingExtraError("torch is not installed")


def photo_weights() -> Check:
    """The weights of ``load("photo")``, compared with the hash in the wheel's RECORD."""
    path = Path(bcls.__file__).parent / PHOTO
    if not path.is_file():
        return Check("photo", "not part of this installation")
    found = sha256_of(path)
    files = metadata.files("bcls") if version_of("bcls") else None
    recorded = [file.hash.value for file in files or () if file.as_posix() == f"bcls/{PHOTO}" and file.hash]
    if not recorded:
        return Check("photo", f"sha256 {found[:12]}, no RECORD to compare with")
    expected = base64.urlsafe_b64decode(recorded[0] + "=").hex()  # RECORD leaves the padding out
    if found != expected:
        hint = "pip install --force-reinstall --no-deps bcls"
        return Check("photo", "damaged", f"expected sha256 {expected}, got {found}; {hint}")
    return Check("photo", f"as installed, sha256 {found[:12]}")


def self_test() -> list[Check]:
    """Loss and training on each kind of device, and photo search."""
    if not _has_torch():
        return [Check("loss and training", 'not run: torch is not installed; pip install "bcls[train]"')]
    import torch

    tests: dict[str, Callable[[], str]] = {}
    for device in ("cpu", "cuda")[: 1 + torch.cuda.is_available()]:
        tests[f"loss on {device}"] = partial(check_loss, device)
        tests[f"training on {device}"] = partial(check_training, device)
    return [attempt(name, test) for name, test in {**tests, "index and search": check_search}.items()]


def attempt(name: str, test: Callable[[], str]) -> Check:
    """Run one test. An exception becomes the problem of the check, a missing extra does not."""
    started = time.monotonic()
    try:
        return Check(name, f"{test()} ({time.monotonic() - started:.1f} s)")
    except MissingExtraError as error:
        return Check(name, f"not run: {error}")
    except Exception as error:  # a broken installation can fail anywhere
        return Check(name, "failed", f"{type(error).__name__}: {reason_of(error)}")


def check_loss(device: str) -> str:
    r"""Compare BCLS of two images and two captions with a value computed by hand, on a GPU with the fused kernels.

    With :math:`s = ((0.9, 0.3), (0.6, 0.55))` and labels of 0.25 off the diagonal, only the second image is ranked
    wrongly. With one negative the soft negative equals the hard one: the binary term is
    :math:`0.6 - 0.55 + 0.2 = 0.25`. The wrong order costs :math:`0.05` in the 6 of 18 windows whose lower edge is above
    0.25, so the continuous term is :math:`0.05 / 3`. The gradient of each active hinge is 1: :math:`1 + 1/3` for the
    negative and the opposite for the positive.
    """
    import torch

    from bcls.experiments.bench import step
    from bcls.losses import BCLSLoss
    from bcls.losses.backends import can_fuse

    similarity = torch.tensor([[0.9, 0.3], [0.6, 0.55]], device=device, requires_grad=True)
    relevance = torch.tensor([[1.0, 0.25], [0.25, 1.0]], device=device)
    found = step(BCLSLoss(reduction="sum"), (similarity,), relevance)
    expected = torch.tensor(0.25 + 0.05 / 3), torch.tensor([[0.0, 0.0], [4 / 3, -4 / 3]])
    for name, one, reference in zip(("loss", "gradient"), found, expected, strict=True):
        if not one.cpu().allclose(reference, rtol=1e-4, atol=1e-4):
            got = f"a maximum difference of {(one.cpu() - reference).abs().max().item():.3g}"
            fail(name, "the reference values", got, _REINSTALL_TORCH)
    path = "fused kernels" if can_fuse(similarity) else "plain path"
    return f"{found[0].item():.4f}, value and gradient as computed by hand ({path})"


def check_training(device: str) -> str:
    """Train a small VSE++ on six pairs for ten steps. The loss must decrease."""
    import torch

    from bcls.losses import BCLSLoss
    from bcls.models import build
    from bcls.models.layers import Padded

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build({"name": "vsepp", "words": 12, "features": 8, "width": 16}).to(device).train()
        images = Padded(torch.randn(6, 4, 8, device=device))
    texts = Padded(torch.arange(12, device=device).reshape(6, 2), torch.full((6,), 2, device=device))
    loss, optimizer, values = BCLSLoss(), torch.optim.Adam(model.parameters(), lr=0.01), []
    for _ in range(10):
        value = loss(model.scores(model.image_codes(images), model.text_codes(texts)), torch.eye(6, device=device))
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        values.append(value.item())
    if not values[-1] < values[0]:
        fail("training", f"a loss below {values[0]:.4f} after 10 steps", f"{values[-1]:.4f}", _REINSTALL_TORCH)
    return f"the loss decreases from {values[0]:.3f} to {values[-1]:.3f} in 10 steps"


def check_search() -> str:
    """Index three synthetic scenes with an untrained model, and search with each image.

    Raises:
        ValueError: An image is not its own first result.
        MissingExtraError: The extra ``search`` is not installed.
    """
    require("faiss", "search", "a photo index")
    import torch

    from bcls.data.synthetic import make_scenes, render
    from bcls.models.scenes import TEXT_WIDTH, ScenesConfig, ScenesModel
    from bcls.search import PhotoIndex

    def embed(texts: Sequence[str]) -> "Tensor":  # MiniLM takes seconds to load and is not needed here
        return torch.eye(len(texts), TEXT_WIDTH)

    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory(prefix="bcls-doctor-") as name:
        torch.manual_seed(0)
        model = ScenesModel(ScenesConfig(side=48, channels=4, width=16), embed).eval()
        photos = Path(name) / "photos"
        photos.mkdir()
        for number, scene in enumerate(make_scenes(3, seed=0).scenes):
            render(scene, 48).save(photos / f"{number}.png")
        with contextlib.redirect_stderr(io.StringIO()):  # hides the progress bars
            index = PhotoIndex.build(photos, Path(name) / "index", model, captions=False, workers=1)
        with index:
            for image in sorted(photos.iterdir()):
                (first,) = index.search(image, 1)
                if Path(first.path).name != image.name:
                    fail("search", f"{image.name} as its own first result", first.path, "please report this")
    return "3 synthetic scenes indexed and found"
