"""Keep the conventions of CONTRIBUTING.md that a program can check. Taste stays with reviewers."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "mulligan"


@cache
def modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


BANNED = frozenset(
    [
        "said",
        "told",
        "tell",
        "telling",
        "seen",
        "heard",
        "hearing",
        "asked",
        "alike",
        "likewise",
        "lone",
        "lonely",
        "beside",
        "aside",
        "house",
        "room",
        "door",
        "desk",
        "crew",
        "nursery",
        "litter",
        "obituary",
        "murmur",
        "news",
        "lately",
        "tending",
        "who",
        "whom",
        "whoever",
        "nobody",
        "somebody",
    ]
)
# Field words that only look like banned ones, each with its meaning.
ALLOWED = {
    "first_seen": "public field of a failure group",
    "last_seen": "public field of a failure group",
    "tell": "file position, io.IOBase.tell",
}
NEEDS_ITS_NEIGHBOUR = re.compile(r"(The same|Of|Who|Whom|What|As|Also|Those|Such|With what)\b")
PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w.-]+\.(?:py|sql|toml|md|html|css|js|yml|patch))?)`")


def test_no_class_name_occurs_twice() -> None:
    classes = [
        node.name
        for tree in modules().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, count in Counter(classes).items() if count > 1] == []


def test_no_identifier_uses_a_banned_word() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, tree in modules().items()
        for name in _defined_names(tree)
        if name not in ALLOWED and not BANNED.isdisjoint(_words(name))
    }
    assert sorted(found) == []


def test_every_docstring_stands_alone() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path, tree in modules().items()
        for text in _docstrings(tree)
        if NEEDS_ITS_NEIGHBOUR.match(text)
    ]
    assert found == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [path for path, tree in modules().items() if tree.body and not ast.get_docstring(tree)]
    assert silent == []


def test_imports_form_no_cycle() -> None:
    graph = grimp.build_graph("mulligan", exclude_type_checking_imports=False, cache_dir=None)
    remaining = {module: _imports(graph, module) for module in graph.modules}
    while free := {module for module, imports in remaining.items() if not imports}:
        remaining = {
            module: imports - free for module, imports in remaining.items() if module not in free
        }
    assert sorted(_in_a_cycle(remaining)) == []


def test_the_types_that_carry_a_job_are_at_most_fourteen_and_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text.partition("types carry a job")[2].partition("Not counted")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| `([\w/.]+)` \|$", table, re.MULTILINE)
    assert 9 < len(rows) <= 14
    for name, path in rows:
        assert f"class {name}" in (SOURCE / path).read_text(), (name, path)


def test_every_path_named_in_docs_and_docstrings_exists() -> None:
    missing = [
        f"{where.relative_to(ROOT)}: {path}"
        for where, text in _texts()
        for path in PATH.findall(text)
        if _is_ours(path) and not _exists(path, where.parent)
    ]
    assert missing == []


def _defined_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def _words(name: str) -> set[str]:
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_"))


def _docstrings(tree: ast.Module) -> Iterator[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented):
            yield ast.get_docstring(node) or "-"


def _imports(graph: grimp.ImportGraph, module: str) -> set[str]:
    """Return what a module imports, with the packages that Python imports before a module of theirs."""
    imports: set[str] = set()
    for imported in graph.find_modules_directly_imported_by(module):
        imports.add(imported)
        parts = imported.split(".")
        packages = [".".join(parts[:end]) for end in range(2, len(parts))]
        imports.update(name for name in packages if not f"{module}.".startswith(f"{name}."))
    return imports


def _in_a_cycle(imports: dict[str, set[str]]) -> set[str]:
    """Drop modules that only import a cycle but are not part of one."""
    imported = set().union(*imports.values()) if imports else set()
    inner = {module: names for module, names in imports.items() if module in imported}
    return set(inner) if len(inner) == len(imports) else _in_a_cycle(inner)


def _texts() -> Iterator[tuple[Path, str]]:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        yield page, page.read_text()
    for path, tree in modules().items():
        yield path, "\n".join(_docstrings(tree))


def _is_ours(path: str) -> bool:
    first = path.split("/", maxsplit=1)[0]
    if first in {".", ".."}:
        return False
    return (ROOT / first).is_dir() or (SOURCE / first).is_dir()


def _exists(path: str, folder: Path) -> bool:
    return any((base / path).exists() for base in (ROOT, SOURCE, SOURCE.parent, folder))
