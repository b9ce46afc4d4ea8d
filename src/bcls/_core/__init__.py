"""Helpers: errors, files, locks, configuration, progress, optional dependencies.

The other packages import the names from here; :mod:`bcls._core.progress` has a function of its own name.
"""

# ruff: noqa: F403
from bcls._core.config import *
from bcls._core.errors import *
from bcls._core.extras import *
from bcls._core.files import *
from bcls._core.locks import *
