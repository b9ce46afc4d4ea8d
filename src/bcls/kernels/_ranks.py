"""What the ranks of a job tell each other about a batch that is spread over them; nothing without a group."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from bcls.kernels._parts import Keys, Soft, merge


class Share(NamedTuple):
    """One rank's part of the batch: its rows follow those of the ranks before it."""

    group: "dist.ProcessGroup | None"  #: None for a batch that is whole
    sizes: tuple[int, ...]  #: rows of each rank
    first: int  #: number of this rank's first row in the whole batch

    def gather(self, rows: Tensor) -> Tensor:
        """All ranks' rows, in order."""
        if self.group is None:
            return rows
        # Ranks may differ in size, and the collective wants equal shapes.
        padded = rows.new_zeros((max(self.sizes), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in self.sizes]
        dist.all_gather(parts, padded, group=self.group)
        return torch.cat([part[:size] for part, size in zip(parts, self.sizes, strict=True)])

    def add(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        if self.group is not None:
            dist.all_reduce(tensor, dist.ReduceOp.SUM, group=self.group)
        return tensor

    def merge_keys(self, keys: Keys | None) -> None:
        """Greatest keys of the columns over ranks, in place; rows are whole on their rank."""
        if self.group is not None and keys is not None:
            dist.all_reduce(keys.columns, dist.ReduceOp.MAX, group=self.group)

    def merge_sums(self, sums: Soft | None) -> Soft | None:
        """Soft sums of the columns over ranks."""
        if self.group is None or sums is None:
            return sums
        top, total, count = merge(sums.columns).unbind()
        highest = top.clone()
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=self.group)
        total = total * (top - highest.masked_fill(highest == -torch.inf, 0)).exp2()
        dist.all_reduce(total, dist.ReduceOp.SUM, group=self.group)
        dist.all_reduce(count, dist.ReduceOp.SUM, group=self.group)
        return sums._replace(columns=torch.stack((highest, total, count)))


def share_of(rows: Tensor, group: "dist.ProcessGroup | None") -> Share:
    """This rank's share of the batch."""
    if group is None:
        return Share(None, (len(rows),), 0)
    mine = torch.tensor([len(rows)], device=rows.device)
    sizes = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, mine, group=group)
    numbers = tuple(int(size) for size in sizes)
    return Share(group, numbers, sum(numbers[: dist.get_rank(group)]))
