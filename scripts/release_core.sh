#!/bin/sh
# Tries a wheel in an empty environment, with the core alone and with the extra search, and measures its size:
# release_core.sh PYTHON WHEEL
# Fails if a size is above 500 MB, if torch is installed, or if something that needs no extra does not work.
set -eu
python=$1 wheel=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
constraints=$(cd "$(dirname "$0")/.." && pwd)/constraints.txt

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
"$python" -m venv core

install() {  # name of the installation, and what pip installs
    core/bin/pip install --quiet --disable-pip-version-check --constraint "$constraints" "$2"
    core/bin/python - "$1" <<'END'
import importlib.util
import os
import sys
size = sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk("core") for name in names)
torch = importlib.util.find_spec("torch") is not None
print(f"{sys.argv[1]}: {size / 1e6:.0f} MB installed, at most 500 MB; torch installed: {torch}")
sys.exit(size > 500e6 or torch)
END
}

install core "$wheel"
core/bin/python - <<'END'
import sys
import time
start = time.perf_counter()
import bcls
took = time.perf_counter() - start
print(f"core: import bcls takes {took:.3f} s, at most 0.3 s; torch imported: {'torch' in sys.modules}")
sys.exit(took > 0.3 or "torch" in sys.modules)
END
core/bin/bcls --version
core/bin/python -m bcls doctor
install search "$wheel[search]"
