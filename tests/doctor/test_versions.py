"""Versions and devices."""

import platform

import bcls
from bcls.cli.doctor import devices, version_of, versions
from tests.doctor.installed import describe_install


def test_what_is_told():
    lines = {line.name: line.value for line in versions().lines}
    assert lines["bcls"] == bcls.__version__
    assert lines["python"].startswith(platform.python_version())
    assert lines["numpy"] == version_of("numpy")
    assert {"torch", "CUDA of torch", "NVIDIA driver", "triton"} <= set(lines)


def test_a_mix_of_two_installs_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(describe_install(tmp_path, version="0.0.1"))
    assert "the code is" in versions().lines[0].problem


def test_a_core_package_that_is_missing_is_a_problem(monkeypatch):
    monkeypatch.setattr("bcls.cli.doctor._PACKAGES", ("no-such-package",))
    assert "pip install no-such-package" in versions().lines[-1].problem


def test_devices_without_a_gpu_or_with_one():
    lines = {line.name: line.value for line in devices().lines}
    assert {"processors", "threads of torch", "memory"} <= set(lines)
    assert "cuda:0" in lines or lines["CUDA devices"] == "none"
