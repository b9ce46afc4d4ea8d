"""Pages in one HTML file: what a model gets wrong, and where two models disagree."""

from bcls.assess.page.comparison import comparison_page
from bcls.assess.page.evaluation import evaluation_page

__all__ = ["comparison_page", "evaluation_page"]
