"""Drawn scenes with captions, and the true relevance of every caption to every scene.

Nothing is downloaded: scenes are sampled, drawn and described from a seed. True relevance is defined in
:mod:`bcls.data.synthetic.relevance`.

Example:
    >>> data = make_scenes(3, seed=0)
    >>> render_all(data.scenes, size=48).shape
    (3, 48, 48, 3)
    >>> true_relevance(data.scenes, data.captions).shape
    (3, 15)
"""

from bcls.data.synthetic.captions import Caption, Facts, Mention, Relation
from bcls.data.synthetic.dataset import SceneDataset, load, make_scenes, render, render_all, save
from bcls.data.synthetic.relevance import true_relevance
from bcls.data.synthetic.scene import Scene, SceneObject

__all__ = ["Scene", "SceneDataset", "SceneObject", "load", "make_scenes", "render", "render_all", "save"]
__all__ += ["Caption", "Facts", "Mention", "Relation", "true_relevance"]
