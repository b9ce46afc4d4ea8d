"""What the caption metrics need of Java: the program itself, and the tokeniser that comes with ``pycocoevalcap``."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bcls._checks import fail
from bcls._extras import require

# As pycocoevalcap has it, so that scores are those of the papers.
_PUNCTUATION = frozenset(
    ["''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--", "...", ";"]
)


def java(metric: str) -> str:
    """The Java program.

    Raises:
        ValueError: If there is none.
    """
    found = shutil.which("java")
    if found is None:
        fail(metric, "Java", "no `java` on the path", "install a Java runtime, such as Debian's default-jre-headless")
    return found


def metrics_folder(metric: str) -> Path:
    """The folder of ``pycocoevalcap``, which holds the programs of the metrics.

    Raises:
        MissingExtraError: If it is not installed.
    """
    package = require("pycocoevalcap", "caption-metrics", f"the metric {metric!r}")
    return Path(next(iter(package.__path__)))


def ptb_tokens(metric: str, texts: Sequence[str]) -> list[str]:
    """Texts as lower-case words with spaces between and without punctuation, by Stanford's PTB tokeniser.

    Raises:
        ValueError: If there is no Java, or the tokeniser fails.
        MissingExtraError: If ``pycocoevalcap`` is not installed.
    """
    if not texts:
        return []
    jar = metrics_folder(metric) / "tokenizer" / "stanford-corenlp-3.4.1.jar"
    command = [java(metric), "-Dfile.encoding=UTF-8", "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer"]
    # A line a text: the library's own call does the same by way of a file in its package, which may not be writable.
    lines = "".join(" ".join(text.split()) + "\n" for text in texts)
    run = subprocess.run(  # noqa: S603 - our own words; texts go through standard input
        [*command, "-preserveLines", "-lowerCase", "-encoding", "UTF-8"],
        input=lines.encode(),
        capture_output=True,
        check=False,
    )
    split = run.stdout.decode().split("\n")[:-1]
    if run.returncode or len(split) != len(texts):
        got = f"{len(split)} lines for {len(texts)} texts: {run.stderr.decode(errors='replace').strip()[-200:]}"
        fail(metric, "the tokeniser's words of every text", got, "check that `java` runs")
    return [" ".join(word for word in line.split() if word not in _PUNCTUATION) for line in split]
