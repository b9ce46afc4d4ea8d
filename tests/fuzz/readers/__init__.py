"""Every reader of the library, by name."""

import importlib
import pkgutil

from tests.fuzz.engine import Reader

READERS: dict[str, Reader] = {
    reader.name: reader
    for module in sorted(one.name for one in pkgutil.iter_modules(__path__) if not one.name.startswith("_"))
    for reader in importlib.import_module(f"{__name__}.{module}").READERS
}
