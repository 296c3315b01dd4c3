"""Ctrl-C in the seconds in which Python imports torch and what else this package needs: a sentence, no traceback.

It stays the KeyboardInterrupt that it is for whoever imports this package and catches it. Only what Python prints of
one that came while this package was being imported, and that nobody caught, is shorter.
"""

import os
import sys
from pathlib import Path
from traceback import walk_tb
from types import TracebackType

others = sys.excepthook


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not (issubclass(kind, KeyboardInterrupt) and _came_with_an_import(trace)):
        others(kind, error, trace)
    elif os.environ.get("LOCAL_RANK", "0") == "0":  # of several ranks the first speaks
        print("interrupted before anything was begun", file=sys.stderr)
    elif "TORCHELASTIC_RUN_ID" not in os.environ:  # Lightning's first rank kills itself where another ends with a code
        os._exit(0)


def _came_with_an_import(trace: TracebackType | None) -> bool:
    codes = [frame.f_code for frame, _ in walk_tb(trace)]
    return any(code.co_name == "<module>" and Path(code.co_filename).parent == Path(__file__).parent for code in codes)


def over() -> None:
    """Leave what Python prints to others again."""
    if sys.excepthook is _show:
        sys.excepthook = others


sys.excepthook = _show
