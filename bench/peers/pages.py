from pathlib import Path


def write(path: Path) -> None: ...
