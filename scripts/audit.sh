#!/bin/sh
# Looks over the dependencies: audit.sh PYTHON [SBOM]
# With pip-audit and its database within reach, known vulnerabilities; otherwise the installed files against the bill of
# materials, which is made first where there is none: then files that were changed after they were installed are found.
set -eu
python=${1:-python3} bill=${2:-sbom.json}
here=$(dirname "$0")

reachable='
import sys, urllib.request
try:
    with urllib.request.urlopen("https://pypi.org/pypi/pip/24.0/json", timeout=10) as answer:
        sys.exit(b"vulnerabilities" not in answer.read())
except OSError:
    sys.exit(1)
'
if "$python" -m pip_audit --version >/dev/null 2>&1 && "$python" -c "$reachable"; then
    echo "audit: asking the database of known vulnerabilities"
    exec "$python" -m pip_audit --local --skip-editable --progress-spinner off
fi
echo "audit: pip-audit or its database is not within reach; comparing the installed files with $bill"
[ -f "$bill" ] || "$python" "$here/sbom.py" "$bill"
"$python" "$here/sbom.py" --check "$bill"
echo "audit: every installed file is the one that its package recorded"
