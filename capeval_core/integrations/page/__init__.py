"""The page of a metric: an image and a caption in, the score on its scale out.

`app.py` of a Space, and a user's own machine:

    demo = page.build("pacs")
    page.launch(demo)
"""

from capeval_core.integrations.page.blocks import build, launch

__all__ = ["build", "launch"]
