"""The import contracts of pyproject.toml, without the modules that do not exist."""

from __future__ import annotations

import configparser
import tomllib
from pathlib import Path
from typing import Any

LISTS_OF_MODULES = ("source_modules", "protected_modules", "allowed_importers", "modules")


def write_contracts(root: Path, target: Path) -> None:
    """Write them in import-linter's INI form. A contract left without modules is left out."""
    tables: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    settings: dict[str, Any] = tables["tool"]["importlinter"]
    written = configparser.ConfigParser()
    written["importlinter"] = {key: _ini(value) for key, value in settings.items() if key != "contracts"}
    for contract in settings["contracts"]:
        kept = {key: _existing(root, value) if key in LISTS_OF_MODULES else value for key, value in contract.items()}
        if kept.get("layers") is not None:
            kept["layers"] = [_optional(layer) for layer in kept["layers"]]
        if all(kept.values()):
            written[f"importlinter:contract:{kept.pop('id')}"] = {key: _ini(value) for key, value in kept.items()}
    with target.open("w", encoding="utf-8") as file:
        written.write(file)


def _existing(root: Path, modules: list[str]) -> list[str]:
    return [name for name in modules if "*" in name or _exists(root, name)]


def _exists(root: Path, name: str) -> bool:
    path = root.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _optional(layer: str) -> str:
    """The same layer with each of its modules optional."""
    for mark in ("|", ":"):
        if mark in layer:
            return f" {mark} ".join(_optional(part) for part in layer.split(mark))
    name = layer.strip()
    return name if name.startswith("(") else f"({name})"


def _ini(value: object) -> str:
    if isinstance(value, list):
        return "\n" + "\n".join(str(item) for item in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - TOML
    return str(value)
