"""A virtual environment for each peer, so that none of their requirements reaches ours.

    python scripts/bench/environments.py [--environments FOLDER]

Each takes some 1.5 GB and a few minutes. torch comes first, pinned, so that a CPU build that pip is pointed at is kept.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.13.0"
# What is installed for each peer beside torch; psutil reads the memory, pyarrow the rows.
PEERS: dict[str, list[str]] = {
    "pytorch-forecasting": ["pytorch-forecasting==1.8.0", "pyarrow", "psutil"],
    "darts": ["darts[torch]==0.48.1", "pyarrow", "psutil"],
    "neuralforecast": ["neuralforecast==3.3.0", "pyarrow", "psutil"],
}
DEFAULT_FOLDER = Path.home() / ".cache" / "tft-exp" / "peers"


def python_of(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def prepare(peer: str, environments: Path) -> Path:
    """The peer's Python, installed first where it is not there or was meant for other versions."""
    folder = (environments / peer).resolve()
    wanted = "\n".join([TORCH, *PEERS[peer]])
    marker = folder / "installed.txt"
    python = python_of(folder)
    if marker.exists() and marker.read_text() == wanted:
        return python
    print(f"installing {peer} into {folder}", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(TORCH + "\n")
    install = [str(python), "-m", "pip", "install", "--quiet", "--progress-bar", "off"]
    subprocess.run([*install, TORCH], check=True)
    subprocess.run([*install, "-c", str(constraints), *PEERS[peer]], check=True)
    marker.write_text(wanted)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, default=DEFAULT_FOLDER)
    options = parser.parse_args()
    for peer in PEERS:
        print(peer, prepare(peer, options.environments))


if __name__ == "__main__":
    main()
