"""What a person at the terminal is told, on standard error."""

import os
import sys
import time

_COLUMNS = (
    ("i2t R@1", "i2t_r1"),
    ("i2t R@10", "i2t_r10"),
    ("t2i R@1", "t2i_r1"),
    ("t2i R@10", "t2i_r10"),
    ("rsum", "rsum"),
    ("tau", "tau"),
)


def tell(line: str) -> None:
    """Print a line on standard error; of several processes the first one does."""
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr, flush=True)


def tell_epoch(epoch: int, epochs: int, figures: dict[str, float], seconds: float, *, better: bool) -> None:
    """Print a row of the validation table; its head goes before the first row and after every tenth."""
    columns = [(head, key) for head, key in _COLUMNS if key in figures]
    if epoch % 10 == 1:
        tell("validation  " + "  ".join(f"{head:>8}" for head, _ in columns) + "  time left")
    cells = "  ".join(f"{figures[key]:8.4f}" if key == "tau" else f"{figures[key]:8.2f}" for _, key in columns)
    left = duration(seconds / epoch * (epochs - epoch))
    tell(f"epoch {epoch:<4}  {cells}  {left:>9}{'  best' if better else ''}")


def duration(seconds: float) -> str:
    """Seconds for people.

    Example:
        >>> duration(42.2), duration(200), duration(7500)
        ('42 s', '3 min', '2 h 05 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


class Clock:
    """Seconds spent, those of the parts of a run before this one included."""

    def __init__(self, before: float) -> None:
        self._before, self._started = before, time.monotonic()

    def seconds(self) -> float:
        """Seconds up to now."""
        return self._before + time.monotonic() - self._started
