"""Fuzzing of everything that reads; see :mod:`tests.fuzz.engine`."""

import os

# A damaged name of a model must not be looked up on the network, 100,000 times.
os.environ["HF_HUB_OFFLINE"] = "1"
