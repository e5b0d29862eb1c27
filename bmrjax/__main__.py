"""``python -m bmrjax``: the command line where its script is not on the path."""

from bmrjax.cli import script

if __name__ == "__main__":
    script()
