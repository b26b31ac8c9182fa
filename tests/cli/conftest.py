from support.artifacts import gather_library, library, own_library
from support.commands import tpo_inside

__all__ = ["gather_library", "library", "own_library", "tpo_inside"]
