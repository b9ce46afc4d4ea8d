"""The split that a file's name tells of."""

import re

_KNOWN = ("train", "val", "dev", "testall", "test")


def split_of(name: str, default: str = "train") -> str:
    """Find the split's name in a file name.

    Example:
        >>> split_of("captions_val2014.json"), split_of("shard-test-0001.tar"), split_of("0001.tar")
        ('val', 'test', 'train')
    """
    words = re.split(r"[^a-z]+", name.lower())
    if "validation" in words or "valid" in words:
        return "val"
    return next((split for split in _KNOWN if split in words), default)
