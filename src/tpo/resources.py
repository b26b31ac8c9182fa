"""Where the folders that ship with tpo are: `schedule_rules/` and `configs/`."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """Path of a shipped folder, in an installed wheel as in an editable install.

    >>> folder("configs").is_dir()
    True
    """
    for root in (_PACKAGE / "_shipped", _PACKAGE.parent.parent):
        if (root / name).is_dir():
            return root / name
    raise FileNotFoundError(f"tpo was installed without its {name}/ folder; install it again")
