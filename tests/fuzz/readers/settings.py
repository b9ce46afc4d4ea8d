"""YAML files: sweeps with a preset, and settings for ``--config``."""

from functools import partial

import yaml

from bcls._core.errors import fail
from bcls.cli.arguments import parse
from bcls.experiments.sweep_file import read_sweep
from bcls.training.config import TrainConfig, check_config
from tests.fuzz.damage import change_value, damage
from tests.fuzz.engine import Reader
from tests.fuzz.readers._imports import put

SWEEP = b"""about: rows
base: {loss: {name: bcls}, epochs: 2, lr: 5e-4}
settings: &all {batch: 16, labels: wordllama}
runs:
  A: {lr: 1e-3, noise: 0.1, paper: SGR}
  B: {<<: *all, epochs: 3, space: {loss.alpha: [0.1, 0.2]}}
  C: {ensemble: [A, B]}
search: {budget: 2, space: {lr: [1e-3, 1e-2]}, seeds: [1, 2]}
seeds: 2
paper: [III, V]
columns: Flickr30K
folds: 5
"""
GRID = b"base: preset.yaml\ngrid: {loss.alpha: [0.1, 0.2], epochs: [1]}\nseeds: [1, 2]\nscenes: 40\njudged_choice: a\n"
PRESET = b"model: {name: vsepp, width: 8}\nloss: {name: bcls, alpha: 0.2}\nlr: 5e-4\nrates: {heads: 2}\ndrops: [3, 5]\n"
#: Small inputs that expand to large ones.
_BITS = (
    b"a: &a [*a]\n",
    b"- " * 2000,
    b"{a: " * 2000,
    b"a0: &a0 [x, x]\n"
    + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 9)),
    b"&a {<<: *a}",
    b"1" + b":59" * 3000,
    b"!!python/object/apply:os.getcwd []",
    b"2020-99-99",
)


def damage_yaml(draw, seeds):
    """Return settings with changed values, or with inserted pieces that expand."""
    how = draw.random()
    content = draw.choice(seeds)
    if how < 0.5:
        changed = change_value(draw, yaml.safe_load(content))
        try:
            return yaml.safe_dump(changed).encode()
        except (yaml.YAMLError, RecursionError, ValueError):  # a value has no YAML form
            return damage(draw, seeds)
    if how < 0.7:
        at = draw.randrange(len(content) + 1)
        return content[:at] + draw.choice(_BITS) + content[at:]
    return damage(draw, seeds)


def read_file(name, content, folder):
    put(folder, "preset.yaml", PRESET)
    put(folder, "sweep.yaml", GRID)
    path = put(folder, name, content)
    read_sweep(folder / "sweep.yaml" if name == "preset.yaml" else path)


def read_flags(content, folder):
    path = put(folder, "config.yaml", content)
    try:
        config = parse("train", TrainConfig, ["--config", str(path)])
    except ValueError as error:
        if str(error).endswith("see `bcls train --help`"):  # a message of the parser, on one line
            fail("--config", "settings", str(error), "see the help")
        raise
    check_config(config)


READERS = (
    Reader("sweep", lambda: [SWEEP, GRID], partial(read_file, "sweep.yaml"), damage_yaml),
    Reader("sweep preset", lambda: [PRESET], partial(read_file, "preset.yaml"), damage_yaml),
    Reader("train settings", lambda: [PRESET], read_flags, damage_yaml),
)
