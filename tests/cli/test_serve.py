"""``bcls serve`` as a user starts it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from bcls.cli import main as cli
from tests.search.factories import index, photos, tiny_model

pytest.importorskip("faiss", reason='needs pip install "bcls[search]"')
pytest.importorskip("fastapi", reason='needs pip install "bcls[web]"')
TestClient = pytest.importorskip("starlette.testclient").TestClient
ROOT = Path(__file__).parents[2]
#: The command, with the model of the tests known to it.
START = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # `nohup` starts processes that ignore it
from bcls.cli import main as cli
from bcls.models import MODELS
MODELS["colors"] = ("tests.search.factories:ColorConfig", "tests.search.factories:ColorModel")
cli.COMMANDS["serve"] = ("bcls.cli.serve", "serve")
sys.exit(cli.main(["serve", *sys.argv[1:]]))
"""


@pytest.fixture
def made(monkeypatch, tmp_path, capsys):
    index(photos(tmp_path / "photos", 6), tmp_path / "index", tiny_model(monkeypatch, tmp_path / "tiny"))
    capsys.readouterr()
    return tmp_path / "index"


@pytest.fixture
def run(monkeypatch, capsys):
    monkeypatch.setitem(cli.COMMANDS, "serve", ("bcls.cli.serve", "serve"))

    def call(*words):
        code = cli.main(["serve", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def get(address, token=""):
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        return json.load(answer)


@pytest.mark.parametrize(
    ("flags", "status"), [((), 421), (("--behind-proxy",), 200), (("--token", "a secret of the house"), 200)]
)
def test_other_host_names_need_a_token_or_a_proxy(run, made, monkeypatch, flags, status):
    """Without these, a site could reach the app through a domain name that points to this machine."""
    found = []

    def request(config, listening, ready):
        with TestClient(config.app, base_url="http://photos.example") as client:
            headers = {"Authorization": "Bearer a secret of the house"}
            found.append(client.get("/api/search?q=red", headers=headers).status_code)

    monkeypatch.setattr("bcls.web.serve", request)
    assert run(made, "--port", "0", "--labels", "none", *flags)[0] == 0
    assert found == [status]


def test_serve_answer_and_stop(made, tmp_path):
    secret = tmp_path / "token"
    secret.write_text("a secret of the house\n")
    words = [made, "--port", "0", "--token", f"@{secret}", "--compare", made, "--labels", "none", "--no_cache"]
    process = subprocess.Popen(
        [sys.executable, "-c", START, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        address = re.fullmatch(r"6 photos at (http://127\.0\.0\.1:\d+) \(Ctrl-C to stop\)\n", line)
        assert address, line
        assert get(f"{address[1]}/healthz") == {"status": "ok"}
        found = get(f"{address[1]}/api/search?q=red&k=2", "a secret of the house")
        assert [row["name"] for row in found["results"]][:1] == ["0/000-red-red.png"]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(f"{address[1]}/api/search?q=red")
    finally:
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error == "bcls serve: stopped\n"


def test_bad_input_is_one_line(run, made, tmp_path):
    blank, odd = tmp_path / "blank", tmp_path / "odd"
    blank.write_text(" \n")
    odd.write_bytes(b"\xff" * 20)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for words, message in (
            ((), "arguments are required: INDEX"),
            ((tmp_path / "none", "--port", 0), "no such index"),
            ((tmp_path, "--port", 0), "expected an index with an index.json, got none"),
            ((made, "--port", port), f"`--port`: expected a free port at 127.0.0.1, got {port} (Address already"),
            ((made, "--port", 70000), "`--port`: expected a number up to 65535"),
            ((made, "--host", "0.0.0.0"), "expected 127.0.0.1, or --token or --behind-proxy in addition"),  # noqa: S104
            ((made, "--host", "no such host", "--behind-proxy"), "`--host`: expected an address of this machine"),
            ((made, "--token", "short"), "`token`: expected at least 16 ASCII characters, got 5"),
            ((made, "--token", f"@{tmp_path / 'none'}"), "No such file"),
            ((made, "--token", ""), "`--token`: expected at least 16 characters, or @FILE, got an empty token"),
            ((made, "--token", f"@{blank}"), f"expected at least 16 characters in {blank}, got an empty file"),
            ((made, "--token", f"@{odd}"), f"`--token`: expected text in {odd}, got other bytes"),
            ((made, "--token", "null"), "`token`: expected at least 16 ASCII characters, got 4"),
            ((made, "--port", 0, "--runs", tmp_path / "none"), "`--runs`: expected a folder of training runs"),
            ((made, "--port", 0, "--compare", tmp_path / "none"), "no such index"),
            ((made, "--at_once", 0), "`at_once`: expected a whole number not below 1"),
            ((made, "--max-upload", 0), "`--max-upload`: expected a whole number"),
            ((made, "--prot", 80), "did you mean --port?"),
        ):
            code, output, error = run(*words)
            assert code == 2, words
            assert output == ""
            assert message in error, error
            assert error.count("\n") == 1


def test_an_index_of_another_version_or_model(run, made, tmp_path, monkeypatch):
    manifest = made / "index.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "version": 99}))
    rebuild = "expected an index of version 2, got version 99; build it again: delete the folder, then run `bcls index"
    assert rebuild in run(made, "--port", 0)[2]
    message = run(made, "--port", 0)[2]
    assert "got version 99" in message
    assert f"bcls index {tmp_path / 'photos'} --out {made}" in message
    manifest.write_text(json.dumps(content))
    another = tiny_model(monkeypatch, tmp_path / "another", seed=4)
    code, _, error = run(made, "--port", 0, "--model", another)
    assert code == 2
    assert "vectors of different models are not comparable" in error


def test_help_and_light_start(run, capsys):
    with pytest.raises(SystemExit) as left:
        run("--help")
    assert left.value.code == 0
    assert "usage: bcls serve INDEX" in capsys.readouterr().out
    code = "import sys, bcls.cli.serve; print(sorted({'torch', 'fastapi', 'uvicorn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
