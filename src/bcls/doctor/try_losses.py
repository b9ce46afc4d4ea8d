"""Self-test: the loss against numbers worked out by hand, a few steps of training, kernels against the plain path."""

from typing import TYPE_CHECKING

from bcls._checks import fail

if TYPE_CHECKING:
    from torch import Tensor

_REMEDY = "install torch again; if that does not help, please report this"


def try_loss(device: str) -> str:
    r"""BCLS of two images and two captions, by hand.

    With :math:`s = ((0.9, 0.3), (0.6, 0.55))` and labels 0.25 off the diagonal only the second image ranks wrongly.
    One negative makes soft negatives hard ones: the binary half is :math:`0.6 - 0.55 + 0.2 = 0.25`. The wrong order
    costs :math:`0.05` in the 6 of 18 windows that begin above 0.25, so the continuous half is :math:`0.05 / 3`. Every
    hinge that is open has slope 1: :math:`1 + 1/3` on the negative, the opposite on the positive.
    """
    import torch

    from bcls.losses import BCLSLoss

    similarity = torch.tensor([[0.9, 0.3], [0.6, 0.55]], device=device, requires_grad=True)
    relevance = torch.tensor([[1.0, 0.25], [0.25, 1.0]], device=device)
    value = BCLSLoss(reduction="sum")(similarity, relevance)
    (slope,) = torch.autograd.grad(value, similarity)
    by_hand = torch.tensor([[0.0, 0.0], [4 / 3, -4 / 3]])
    _compare("the loss", value.detach(), torch.tensor(0.25 + 0.05 / 3))
    _compare("its gradient", slope, by_hand)
    return f"{value.item():.4f}, as worked out by hand, and its gradient"


def try_training(device: str) -> str:
    """A small VSE++ learns six pairs: the loss must come down."""
    import torch

    from bcls._padded import Padded
    from bcls.losses import BCLSLoss
    from bcls.models import build

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build({"name": "vsepp", "words": 12, "features": 8, "width": 16}).to(device).train()
        features = torch.randn(6, 4, 8, device=device)
        words = torch.arange(12, device=device).reshape(6, 2)
    lengths, loss = torch.full((6,), 2, device=device), BCLSLoss()
    relevance = torch.eye(6, device=device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    values = []
    for _ in range(10):
        scores = model.scores(model.image_codes(Padded(features)), model.text_codes(Padded(words, lengths)))
        value = loss(scores, relevance)
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        values.append(value.item())
    if not values[-1] < values[0]:
        fail("training", f"a loss below {values[0]:.4f} after 10 steps", f"{values[-1]:.4f}", _REMEDY)
    return f"10 steps bring the loss from {values[0]:.3f} to {values[-1]:.3f}"


def try_kernels() -> str:
    """The fused kernels against the plain path on the GPU, in value and gradient."""
    import torch

    from bcls.kernels import usable, without_kernels
    from bcls.losses import BCLSLoss

    generator = torch.Generator().manual_seed(0)
    similarity = (torch.randn(96, 96, generator=generator) / 3).cuda().requires_grad_()
    relevance = (torch.rand(96, 96, generator=generator) * 2 - 1).fill_diagonal_(1).cuda()
    if not usable(similarity):
        return 'not tried, the kernels need triton: pip install "bcls[kernels]"'
    loss = BCLSLoss(reduction="sum")
    fused = loss(similarity, relevance)
    (slope,) = torch.autograd.grad(fused, similarity)
    with without_kernels():
        plain = loss(similarity, relevance)
        (expected,) = torch.autograd.grad(plain, similarity)
    _compare("the fused loss", fused.detach(), plain.detach().cpu())
    _compare("the gradient of the fused loss", slope, expected.cpu())
    return "equal to the plain path in value and gradient"


def _compare(what: str, found: "Tensor", expected: "Tensor") -> None:
    import torch

    found = found.detach().cpu()
    if not torch.allclose(found, expected, rtol=1e-4, atol=1e-4):
        gap = (found - expected).abs().max().item()
        fail(what, "the right numbers", f"others, the largest difference is {gap:.3g}", _REMEDY)
