"""The bytes that ``benchmarks.roofline`` states for each kernel, against the tensors that the kernels are given."""

import pytest
import torch

from bcls.losses._triton import engine, kernels, launch, small
from benchmarks import roofline
from tests.losses.factories import DEVICE, slow_if_interpreted

#: Arguments that a kernel reads and writes; one that it changes in place is in both.
ARGUMENTS = {
    "anchor_hinges": ("S R", ""),
    "check_matrices": ("S R", ""),
    "mine_tiles": ("S R ROW_KEYS COLUMN_KEYS", "ROW_KEYS COLUMN_KEYS"),
    "sum_negatives": ("S R", "ROW_SUMS COLUMN_SUMS"),
    "finish_anchors": ("ROW_KEYS COLUMN_KEYS WEIGHTS", "PICKS SHARES"),
    "soft_slopes": ("S R ROW_LEVELS COLUMN_LEVELS", "OUT"),
    "scatter_pairs": ("PICKS SHARES WEIGHTS", ""),
    "sort_rows": ("VALUES PLACES", "KEYS"),
    "find_bounds": ("KEYS", "PLACES BOUNDS"),
    "take_bounds": ("KEYS BOUNDS", "TAKEN"),
    "count_pairs": ("KEYS BOUNDS", "NET EXCESS TRIPLES"),
    "add_slopes": ("KEYS LABELS NET SCORES", "SLOPES HINGES"),
    "_attend_kernel": ("raw_ptr gram_ptr", "weights_ptr"),
    "_attend_backward_kernel": ("raw_ptr gram_ptr grad_ptr", "raw_grad_ptr shares_ptr scaled_ptr"),
    "_local_kernel": ("regions_ptr weights_ptr words_ptr layer_ptr bias_ptr", "nodes_ptr norm_ptr"),
    "_local_backward_kernel": (
        "regions_ptr weights_ptr words_ptr layer_ptr local_ptr", "context_ptr squares_ptr grad_ptr"
    ),
    "_through_norm_kernel": ("nodes_ptr grad_ptr norm_ptr", "local_ptr whole_ptr"),
    "_mix_kernel": ("queries_ptr nodes_ptr mask_ptr", "out_ptr"),
    "_mix_backward_kernel": ("queries_ptr nodes_ptr mask_ptr grad_ptr", "queries_grad_ptr nodes_grad_ptr"),
}  # fmt: skip
SMALL = {"dense": 7, "streamed": 9, "models": (3, 5, 7, 16, 10)}


def size_of(argument, tensor):
    if tensor is None:
        return 0
    if argument in {"ROW_SUMS", "COLUMN_SUMS"}:
        tensor = tensor[:2]  # the third plane is only for `lse: mean`
    return tensor.numel() * tensor.element_size()


def bytes_of(name, given):
    """Bytes of a launch by the tensors it is given."""
    read, written = (argument.split() for argument in ARGUMENTS[name])
    if name == "anchor_hinges" and given["SOFT"]:
        read, written = [*read, "OUT"], [*written, "OUT"]
    total = sum(size_of(argument, given[argument]) for argument in (*read, *written))
    if name == "finish_anchors":
        both = given["rows"] + given["columns"]
        total += 4 * both  # the values of the windows; those of the binary term are only written if there is one
        if given["SOFT"]:
            total += sum(size_of(one, given[one]) for one in ("ROW_SUMS", "COLUMN_SUMS", "ROW_OWN", "LEVELS"))
            total += 4 * both
    return total


class All(set):
    def __contains__(self, one):
        return True


@pytest.fixture
def launched(monkeypatch):
    """Bytes of all launches, by kernel."""
    found, kind = {}, type(kernels.mine_tiles)
    run = kind.run

    def record(self, *arguments, **options):
        name = self.fn.__name__
        given = {**dict(zip(self.arg_names, arguments, strict=False)), **options}
        found[name] = found.get(name, 0) + bytes_of(name, given)
        return run(self, *arguments, **options)

    monkeypatch.setattr(kind, "run", record)
    monkeypatch.setattr(launch, "_COMPILED", {})  # compiled kernels are launched without `run`,
    monkeypatch.setattr(launch, "_REFUSED", All())  # unless they refuse it
    monkeypatch.setattr(engine, "RANKS_FROM", 1)
    return found


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(0, (6,)), pytest.param(0, (6, 130), marks=slow_if_interpreted), (4096, (6,))],
    ids=["one tile", "tiles", "anchors"],
)
def test_formulas_count_the_tensors_of_the_kernels(launched, monkeypatch, largest, sizes):
    monkeypatch.setattr(small, "LARGEST", largest)
    seen = set()
    for name, _, run, formulas in roofline.cases(torch.device(DEVICE), sizes=sizes, **SMALL):
        launched.clear()
        run()
        assert launched, name
        assert launched == {kernel: formulas[kernel][0] for kernel in launched}, name
        seen |= set(launched)
    tiles = {"check_matrices", "mine_tiles", "sum_negatives", "finish_anchors", "soft_slopes", "scatter_pairs"}
    assert seen >= set(ARGUMENTS) - (tiles if largest else {"anchor_hinges"})
