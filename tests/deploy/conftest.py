from support.artifacts import gather_library, library, own_library

__all__ = ["gather_library", "library", "own_library"]
