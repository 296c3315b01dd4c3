"""Federated-learning simulation on PyTorch Lightning Fabric.

Names are imported when they are first used; `__init__.pyi` lists them.
"""

from importlib.metadata import PackageNotFoundError, version

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

try:
    __version__ = version("fl-lightning")
except PackageNotFoundError:  # a clone on the path that was never installed
    __version__ = "unknown"
