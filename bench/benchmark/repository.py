"""Where things are, and the scripts of this repository as modules."""

from __future__ import annotations

import functools
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent.parent


@functools.cache
def load(script: str) -> ModuleType:
    """A script without `.py`, as a module."""
    name = script.replace("/", "_").replace("-", "_")
    loader = SourceFileLoader(name, str(ROOT / script))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look it up there.
    sys.modules[name] = module
    loader.exec_module(module)
    return module
