"""Where models may run on this machine."""

from bcls._checks import fail


def check_device(name: str) -> str:
    """Check that torch can compute on a device of this machine.

    Args:
        name: Such as ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.

    Returns:
        The name.

    Raises:
        ValueError: There is no such device here; the message names those that there are.

    Example:
        >>> check_device("cpu")
        'cpu'
    """
    import torch

    there = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    there += ["mps"] * torch.backends.mps.is_available()
    if name not in there and not (name == "cuda" and "cuda:0" in there):
        fail("device", "one that torch can use here: " + ", ".join(there), repr(name), "choose one of these")
    return name
