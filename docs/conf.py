import sys
from pathlib import Path
from types import GenericAlias

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import figures  # noqa: E402
import notebook_pages  # noqa: E402

import bcls  # noqa: E402

project = "bcls"
author = "The bcls developers"
copyright = author
release = version = bcls.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"bcls {release}"
html_show_sphinx = False

# The copy button of a console block copies the commands without prompt and output.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
# Types are listed where the docstring lists the arguments; `self` and internal helpers need no list of their own.
autodoc_typehints_description_target = "documented"
napoleon_custom_sections = ["Inputs"]


def module_of_alias(app, module, name):  # noqa: ANN001, ANN201
    """The module of a type alias; ``tuple[int, int].__module__`` is builtins, which has no source page to link to."""
    return module if isinstance(getattr(sys.modules.get(module), name, None), GenericAlias) else None


def setup(app):  # noqa: ANN001, ANN201, D103
    app.connect("viewcode-follow-imported", module_of_alias)
    # Drawn by the code that they illustrate, so that images and code agree.
    app.connect("builder-inited", lambda _: figures.draw_all(HERE / "_generated"))
    app.connect("builder-inited", lambda _: notebook_pages.write_pages(HERE / "notebooks", HERE / "_generated"))
