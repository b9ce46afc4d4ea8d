"""GRUs as the one operator that ONNX has for them."""

import torch
from torch import Tensor, nn

from bcls._checks import fail


class OnnxGru(nn.Module):
    """A :class:`torch.nn.GRU` of one layer and direction, batch first, as ONNX's operator ``GRU``.

    The exporter unrolls torch's own layer over the length of the example, so that other lengths would be wrong. This
    one can only be exported, not run: torch does not know the operator.

    Args:
        gru: The layer.

    Raises:
        ValueError: It has more layers or directions.
    """

    def __init__(self, gru: nn.GRU) -> None:
        super().__init__()
        if gru.num_layers != 1 or gru.bidirectional or not gru.batch_first or not gru.bias:
            fail("model", "GRUs of one layer and direction, batch first, with bias", repr(gru), "export another model")
        self.states = gru.hidden_size
        weight, recurrent = gru.get_parameter("weight_ih_l0"), gru.get_parameter("weight_hh_l0")
        bias = (_reordered(gru.get_parameter("bias_ih_l0")), _reordered(gru.get_parameter("bias_hh_l0")))
        self.register_buffer("weight", _reordered(weight)[None])
        self.register_buffer("recurrent", _reordered(recurrent)[None])
        self.register_buffer("bias", torch.cat(bias)[None])

    def forward(self, vectors: Tensor) -> tuple[Tensor, None]:
        """States ``(C, W, D)`` of ``(C, W, d)`` vectors; the last state, torch's second result, is left out."""
        rows, length = vectors.shape[:2]
        states = torch.onnx.ops.symbolic(
            "GRU",
            (vectors.transpose(0, 1), *(self.get_buffer(name) for name in ("weight", "recurrent", "bias"))),
            attrs={"hidden_size": self.states, "linear_before_reset": 1},
            dtype=vectors.dtype,
            shape=(length, 1, rows, self.states),
        )
        return states[:, 0].transpose(0, 1), None


def use_onnx_grus(model: nn.Module) -> None:
    """Put :class:`OnnxGru` in the place of every GRU of a model."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.GRU):
                setattr(module, name, OnnxGru(child))


def _reordered(gates: Tensor) -> Tensor:
    # torch: reset, update, new; ONNX: update, reset, hidden.
    reset, update, new = gates.detach().chunk(3)
    return torch.cat((update, reset, new))
