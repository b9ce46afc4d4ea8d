"""Dual encoders: any image side with any text side, CLIP and SigLIP among them."""

from bcls.models.dual.config import DualConfig

__all__ = ["DualConfig"]
