"""Imports only go down, and the light rooms stay light."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "tft_exp"
# From the top floor down (README, Architecture).
FLOORS = [
    "__main__",
    "cli",
    "app",
    "planner",
    "comparing",
    "reproducing",
    "sweep",
    "experiment",
    "report",
    "planning",
    "hardware",
    "training",
    "data",
    "tracking",
    "model",
    "memory",
    "compose",
    "config",
    "termination",
    "errors",
    "startup",
    "preload",
]


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__init__.py"]


def test_every_room_has_its_floor() -> None:
    assert {room_of(path) for path in FILES} == set(FLOORS)


def test_imports_go_down() -> None:
    upward = []
    for path in FILES:
        for module in imports_of(path):
            if module.startswith("tft_exp."):
                target = module.split(".")[1]
                if FLOORS.index(target) < FLOORS.index(room_of(path)):
                    upward.append(f"{path.relative_to(PACKAGE)} imports {module}")
    assert upward == []


def test_only_tracking_imports_mlflow() -> None:
    assert {room_of(path) for path in FILES if any(module.split(".")[0] == "mlflow" for module in imports_of(path))} == {"tracking"}


def test_model_and_memory_know_nothing_of_the_rest() -> None:
    for path in FILES:
        if room_of(path) in ("model", "memory"):
            assert {module.split(".")[1] for module in imports_of(path) if module.startswith("tft_exp.")} <= {room_of(path)}, path
