"""Run every command of an installed wheel: ``python scripts/release_smoke.py WHEEL``.

Installs the wheel with the extra ``all`` at the versions of ``constraints.txt`` into a virtual environment of its own,
and runs each command there with a small input, in a folder outside the repository. Exits with 1 and the output of the
first command that fails.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: Arguments of each command, and a regular expression that its standard output must match.
COMMANDS = (
    ("demo --out demo --images 100 --seeds 1 --epochs 1", "BCLS"),
    ("data stats demo/scenes", "train"),
    ("data check demo/scenes", ""),
    ("data import folder photos --captions captions.csv --held-out 0.34 --out mine", ""),
    ("data features demo/scenes --backbone efficientnet-lite0 --regions global --name lite0", "1280"),
    ("labels embed demo/scenes --encoder wordllama", "500 embeddings"),
    ("labels alpha demo/scenes", "alpha 0"),
    ("train --config tiny.yaml --data demo/scenes --out run --dry-run", "parameters"),
    ("train --config tiny.yaml --data demo/scenes --out run", "1 epoch"),
    ("train --config tiny.yaml --data demo/scenes --out run --resume --epochs 2", "2 epochs"),
    ("train --config tiny.yaml --data demo/scenes --out other --loss.name triplet-sn", "1 epoch"),
    ("evaluate run --data demo/scenes --labels minilm --html page.html", "RSUM"),
    ("evaluate run other --data demo/scenes --json", '"rsum"'),
    ("compare run other --data demo/scenes", "RSUM"),
    ("sweep sweep.yaml --data demo/scenes --out sweep", "2 of 2"),
    ("report sweep --html report.html", ""),
    ("index photos --out photos.index", "3 photos"),
    ('search photos.index "a red wall" -k 2 --json', r'"path".*"score"'),
    ("search photos.index --image photos/red.png -k 1 --html found.html", r"red\.png"),
    ("export run --out towers", "width 32"),
    ("index demo/scenes --model towers --features lite0 --out scenes.index", "100 photos"),
    ("bench losses names --quick --out bench", ""),
    ("doctor", "bcls"),
    ("completion bash", "_shtab_bcls|complete"),
)
WRITTEN = ("demo/report.html", "run/report.html", "page.html", "report.html", "found.html", "towers/image.onnx")
#: Nothing of the repository is on the path.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}}
COLORS = ("red", "green", "blue")
DRAW = f"from PIL import Image\nfor name in {COLORS}: Image.new('RGB', (64, 64), name).save(f'photos/{{name}}.png')"
TINY = "model: {name: dual, image: features, features: 1280, width: 32}\nfeatures: lite0\nepochs: 1\nbatch: 16\n"
SWEEP = (
    "base: {model: {name: dual, image: features, features: 1280, width: 32}, features: lite0, epochs: 1, batch: 16}\n"
    "runs: {Triplet-SN: {loss: {name: triplet-sn}}, BCLS: {loss: {name: bcls}}}\nseeds: 1\n"
)


class SmokeError(Exception):
    """A command failed."""


def run(program: Path, arguments: list[str], folder: Path, expected: str) -> None:
    """Run ``bcls`` with arguments; raises :class:`SmokeError` if it fails or prints something else."""
    command = [str(program), *arguments]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)  # noqa: S603
    if done.returncode or not re.search(expected, done.stdout, re.DOTALL):
        output = done.stdout[-3000:] + done.stderr[-3000:]
        raise SmokeError(f"bcls {shlex.join(arguments)}: exit code {done.returncode}, expected {expected!r}\n{output}")


def serve(program: Path, folder: Path) -> None:
    """Start the server on a free port, and search once."""
    command = [str(program), "serve", "photos.index", "--port", "0"]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, text=True, **output) as server:  # noqa: S603
        try:
            lines = []
            for line in server.stdout or ():
                lines.append(line)
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    break
            else:
                raise SmokeError("bcls serve: ended without an address\n" + "".join(lines))
            with urllib.request.urlopen(found[0] + "/api/search?q=red&k=1", timeout=60) as answer:  # noqa: S310
                if "path" not in json.dumps(json.load(answer)):
                    raise SmokeError("bcls serve: /api/search has no path")
        finally:
            server.terminate()


def smoke(program: Path, folder: Path) -> Iterator[tuple[str, float]]:
    """Run every command in a folder; yields each with its seconds."""
    python = program.with_name("python")
    code = "from bcls.cli.main import COMMANDS; print(*COMMANDS)"
    names = subprocess.check_output([python, "-c", code], cwd=folder, env=ENVIRONMENT, text=True).split()  # noqa: S603
    tried = {command.split()[0] for command, _ in COMMANDS} | {"serve"}
    if set(names) != tried:
        raise SmokeError(f"scripts/release_smoke.py: expected the commands {sorted(names)}, got {sorted(tried)}")
    for name in names:
        run(program, [name, "--help"], folder, f"usage: bcls {name}")
    (folder / "photos").mkdir()
    subprocess.run([python, "-c", DRAW], cwd=folder, env=ENVIRONMENT, check=True)  # noqa: S603
    rows = "".join(f"{name}.png,a {name} wall\n" for name in COLORS)
    (folder / "captions.csv").write_text("image,caption\n" + rows)
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "sweep.yaml").write_text(SWEEP)
    for command, expected in COMMANDS:
        started = time.perf_counter()
        run(program, shlex.split(command), folder, expected)
        yield f"bcls {command}", time.perf_counter() - started
    started = time.perf_counter()
    serve(program, folder)
    yield "bcls serve photos.index", time.perf_counter() - started
    missing = [name for name in WRITTEN if not (folder / name).is_file()]
    if missing:
        raise SmokeError(f"not written: {', '.join(missing)}")


def main() -> int:
    """Install the wheel and run the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    wheel = parser.parse_args().wheel.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        install = [folder / "venv/bin/pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
        subprocess.run([*install, f"{wheel}[all]"], cwd=folder, check=True)  # noqa: S603
        try:
            for command, seconds in smoke(folder / "venv/bin/bcls", folder):
                print(f"{seconds:5.1f} s  {command}", flush=True)
        except SmokeError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
