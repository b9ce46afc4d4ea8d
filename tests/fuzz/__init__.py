"""Fuzzing of all readers of files; see :mod:`tests.fuzz.engine`."""

import os

# A damaged model name must not cause 100,000 requests to the hub.
os.environ["HF_HUB_OFFLINE"] = "1"
