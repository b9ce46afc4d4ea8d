"""What a check can find, and how bad each kind is."""

from typing import NamedTuple

#: Kinds that make a check fail, with what the table says about them.
PROBLEMS = {
    "changed-file": "files that are not as they were imported",
    "missing-image": "images without a file",
    "damaged-image": "pictures that cannot be read",
    "image-without-captions": "images without captions",
    "empty-caption": "captions without a word",
    "same-picture": "pictures that are in two splits",
    "near-picture": "pictures that are nearly equal in two splits",
    "bad-features": "features that are missing, not finite or all zero",
}
#: Kinds that are only reported: real datasets have them, and they do little harm.
NOTES = {
    "wrong-ending": "pictures whose ending tells another format",
    "animated": "animations, of which the first frame is used",
    "repeated-picture": "pictures that are twice in one split",
    "repeated-caption": "captions that repeat one of the same image",
    "shared-caption": "captions outside train with a text of train",
    "long-caption": "captions of more than 1,000 characters",
    "empty-regions": "images with some regions all zero",
    "not-checked": "parts that were not checked",
}


class Finding(NamedTuple):
    """Something that was found: its kind, the image, caption or file it is about, and what is the matter."""

    kind: str
    subject: str
    detail: str

    @property
    def is_problem(self) -> bool:
        """Whether it makes the check fail."""
        return self.kind in PROBLEMS
