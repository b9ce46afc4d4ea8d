"""Helpers: errors, files, locks, configuration, progress, optional dependencies.

The names can be imported from here or from their modules; those of :mod:`bcls._core.progress` only from the module,
which has the name of its function.
"""

# ruff: noqa: F403
from bcls._core.config import *
from bcls._core.errors import *
from bcls._core.extras import *
from bcls._core.files import *
from bcls._core.locks import *
