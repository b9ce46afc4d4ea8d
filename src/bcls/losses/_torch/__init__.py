"""The losses in plain torch, on every device."""
