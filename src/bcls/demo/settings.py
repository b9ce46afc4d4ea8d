"""What can be set for the demo."""

from dataclasses import dataclass

from bcls._checks import check_whole


@dataclass(frozen=True)
class DemoSettings:
    """Settings of the demo; the defaults take less than four minutes on two cores."""

    out: str = "bcls-demo"
    """Folder for the report, the figures, the scenes and the runs; what an earlier demo left there is replaced."""
    images: int = 2000
    """How many scenes to draw: three quarters to train on, a tenth to validate, the rest to test."""
    seeds: int = 3
    """How many runs for each loss, with other weights and batches."""
    epochs: int = 5
    """How often each run sees every training caption, of which each image has five."""
    batch: int = 64
    """Pairs in a batch."""
    json: bool = False
    """Print the figures as JSON instead of a table."""

    def __post_init__(self) -> None:
        for flag, least in (("images", 100), ("seeds", 1), ("epochs", 1), ("batch", 2)):
            check_whole(f"--{flag}", getattr(self, flag), least=least)
        if self.batch > self.sizes[0]:
            check_whole("--images", self.images, least=-(-self.batch * 4 // 3))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Images to train on, to validate and to test."""
        train, validate = self.images * 3 // 4, self.images // 10
        return train, validate, self.images - train - validate
