"""What can be set for the demo."""

from dataclasses import dataclass

from bcls._checks import check_whole


@dataclass(frozen=True)
class DemoSettings:
    """Settings of the demo; the defaults take about four minutes on two cores."""

    out: str = "bcls-demo"
    """Folder for the report and the figures; made if it is not there."""
    images: int = 2000
    """How many scenes to draw: three quarters to train on, a tenth to validate, the rest to test."""
    seeds: int = 3
    """How many runs for each loss, with other weights and batches."""
    epochs: int = 20
    """How often each run sees every training image."""
    batch: int = 64
    """Pairs in a batch."""
    save_images: bool = False
    """Also write the drawn scenes as PNG files, with their captions and scene graphs."""
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
