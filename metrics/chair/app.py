"""The page of a Space; all of it is in capeval_core."""

from capeval_core.integrations import page

demo = page.build("chair")

if __name__ == "__main__":
    page.launch(demo)
