"""Image-text retrieval with binary and continuous label supervision (BCLS)."""

__version__ = "0.1.0.dev0"
