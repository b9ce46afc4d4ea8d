#!/bin/sh
# Tries a wheel in an empty environment with the core alone, and measures its size: release_core.sh PYTHON WHEEL
# Fails above 1.2 GB, or where what needs no extra does not work.
set -eu
python=$1 wheel=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
constraints=$(cd "$(dirname "$0")/.." && pwd)/constraints.txt
most=1200000000

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
"$python" -m venv core
core/bin/pip install --quiet --disable-pip-version-check --constraint "$constraints" "$wheel"

size=$(core/bin/python - <<'END'
import os
print(sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk("core") for name in names))
END
)
echo "core: $((size / 1000000)) MB installed, at most $((most / 1000000)) MB"
[ "$size" -le "$most" ]

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
