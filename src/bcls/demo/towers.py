"""A model small enough to train on two cores in seconds: a convolutional image tower and a linear text tower."""

from torch import Tensor, nn
from torch.nn import functional

#: Length of an embedding.
WIDTH = 128
_CHANNELS = 16


class Towers(nn.Module):
    """Two towers into one space; similarity is the cosine.

    Args:
        text_width: Length of the caption vectors, MiniLM's, which stay as they are.
    """

    def __init__(self, text_width: int) -> None:
        super().__init__()
        self.image = nn.Sequential(
            *_stage(3, _CHANNELS, 5),
            *_stage(_CHANNELS, 2 * _CHANNELS, 3),
            *_stage(2 * _CHANNELS, 4 * _CHANNELS, 3),
            nn.AdaptiveAvgPool2d(4),  # a coarse grid: where things are matters to captions
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(4 * _CHANNELS * 16, WIDTH),
        )
        self.text = nn.Sequential(nn.Dropout(0.1), nn.Linear(text_width, WIDTH))

    def forward(self, pictures: Tensor, captions: Tensor) -> Tensor:
        """Cosines of ``(N, 3, S, S)`` pictures and ``(C, d)`` caption vectors, ``(N, C)``."""
        images = functional.normalize(self.image(pictures), dim=1)
        texts = functional.normalize(self.text(captions), dim=1)
        return images @ texts.T


def _stage(inside: int, outside: int, kernel: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inside, outside, kernel, stride=2, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    ]
