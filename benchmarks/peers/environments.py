"""An environment for each simulator, with the packages of the Python that makes it, torch too.

Simulators are installed without what they ask for, which is often another torch. The files in
requirements/ name what their import needs, the simulator first.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

import torch

TITLES = {"pfl": "pfl-research", "fluke": "fluke", "flower": "Flower", "fedlab": "FedLab"}
COMPLETE = {"flower"}
"""Installed with all that they ask for: no torch is among it."""


def requirements(peer: str) -> Path:
    """What is installed for a simulator."""
    return Path(__file__).parent / "requirements" / f"{peer}.txt"


def version(peer: str) -> str:
    """The pinned version."""
    return requirements(peer).read_text().split()[0].partition("==")[2]


def packages(peer: str, folder: Path) -> Path:
    """The site-packages of a simulator's environment."""
    return folder / peer / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"


def python(peer: str, folder: Path) -> Path:
    """The interpreter of a simulator's environment, which is made if there is none."""
    done = folder / peer / "complete"
    if not done.exists():
        _run(sys.executable, "-m", "venv", "--clear", "--without-pip", folder / peer)
        site = packages(peer, folder)
        (site / "shared.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
        alone = [] if peer in COMPLETE else ["--no-deps"]
        into = "--target", site, "-r", requirements(peer)
        _run(sys.executable, "-m", "pip", "install", "--quiet", *alone, *into)
        done.touch()
    return folder / peer / "bin" / "python"


def _run(*words: str | Path) -> None:
    subprocess.run([*map(str, words)], check=True)
