"""The `tpo` command: parse, call the library, print. TVM is imported by the commands that need it."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence

import typer

from tpo.cli.app import app
from tpo.errors import TpoError

# Typer ships its own copy of click since 0.2x, so the base of its usage errors is found, not imported.
_ClickError = typer.BadParameter.__mro__[2]

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line and exit: 0 done, 1 failed, 2 bad input, 3 wrong numbers, 130 interrupted."""
    words, debug = _take_debug(list(sys.argv[1:] if arguments is None else arguments))
    if not debug:
        for library in ("onnxscript", "onnx_ir"):  # what they leave unfolded is no news to a user
            logging.getLogger(library).setLevel(logging.ERROR)
    sys.exit(run(words, debug))


def run(words: list[str], debug: bool = False) -> int:
    """Run one command line; the exit code. Every failure is one line on stderr."""
    try:
        result = app(words, standalone_mode=False, prog_name="tpo")
        sys.stdout.flush()
    except TpoError as error:
        return _fail(str(error), error.exit_code, debug)
    except typer.Exit as leaving:
        result = leaving.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED, debug)
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if isinstance(error, _ClickError):
            return _fail(f"{_usage_message(error)}; see tpo --help", 2, debug)
        lines = str(error).strip().splitlines() or ["no message"]
        text = f"internal: {type(error).__name__}: {lines[0]}"
        return _fail(text if debug else f"{text}, run again with --debug", 1, debug)
    # Typer turns Ctrl-C into this code and says nothing.
    if result == INTERRUPTED:
        return _fail("interrupted", INTERRUPTED, debug)
    return result if isinstance(result, int) else 0


def _take_debug(words: list[str]) -> tuple[list[str], bool]:
    """`--debug` may stand before or after the command's name, so it is taken out before parsing."""
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    return kept + words[end:], len(kept) < end


def _usage_message(error: BaseException) -> str:
    message = getattr(error, "format_message", error.__str__)()
    return " ".join(str(message).split()).rstrip(".")


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr)
    return code
