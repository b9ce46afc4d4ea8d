"""LoRA: small trained matrices beside the frozen ones of an encoder."""

from collections.abc import Sequence

from torch import nn

from bcls._checks import fail
from bcls._extras import require

#: What the names of the adapters' parameters contain, after peft's convention.
MARK = ".lora_"


def add_adapters(encoder: nn.Module, side: str, rank: int, alpha: float, targets: Sequence[str]) -> None:
    r"""Put adapters beside linear layers of an encoder, in place; everything else in it is frozen.

    A layer ``W x`` becomes ``W x + (alpha / rank) B A x`` with A ``(rank, in)`` and B ``(out, rank)``, B zero at first,
    so that nothing changes until training begins.

    Args:
        encoder: The encoder.
        side: ``"image"`` or ``"text"``, for the message.
        rank: Rank of the adapters.
        alpha: Scale of what they add.
        targets: Ends of the names of the layers, such as ``q_proj`` and ``v_proj``.

    Raises:
        ValueError: No layer has such a name.
        MissingExtraError: peft is not installed.

    Reference: Hu et al., LoRA, ICLR 2022.
    """
    peft = require("peft", "lora", "training with LoRA")
    linear = {name for name, layer in encoder.named_modules() if isinstance(layer, nn.Linear)}
    chosen = sorted(name for name in linear if any(name == end or name.endswith(f".{end}") for end in targets))
    if not chosen:
        ends = sorted({name.rsplit(".", 1)[-1] for name in linear}) or ["no linear layers"]
        fail(
            "lora_targets",
            f"names of linear layers of the {side} encoder",
            ", ".join(targets),
            f"it has {', '.join(ends)}",
        )
    settings = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=chosen)
    peft.inject_adapter_in_model(settings, encoder)
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_(MARK in name)
