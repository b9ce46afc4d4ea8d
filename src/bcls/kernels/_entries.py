"""The gradient of the continuous half as a list of cells: at most two for each anchor and window."""

from torch import Tensor

from bcls.kernels._parts import Finished
from bcls.kernels.settings import Windows, numbers_on


def entries(finished: Finished, windows: Windows, anchors: int, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """Cells of the similarity's gradient in a block of rows, and their coefficients; a cell may come several times.

    Args:
        finished: Of ``anchors`` row anchors and all column anchors.
        windows: Settings.
        anchors: Number of rows, n.
        first: Number of the first row in the whole batch.

    Returns:
        Rows within the block, columns, coefficients, each ``(E,)``.
    """
    _, _, weights = numbers_on(windows, finished.shares.device)
    sign, anchor, window = (finished.picks >= 0).nonzero(as_tuple=True)
    place = finished.picks[sign, anchor, window].long()
    coefficients = finished.shares[anchor] * weights[window] * (1 - 2 * sign)
    by_row = anchor < anchors
    rows = anchor.where(by_row, place - first)
    columns = place.where(by_row, anchor - anchors)
    here = (rows >= 0) & (rows < anchors)
    return rows[here], columns[here], coefficients[here]
