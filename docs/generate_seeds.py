"""Generate docs/contributors/seeds.md: every requirement of the five specifications, its code and its tests.

Texts and decisions are in docs/seeds/*.toml. The tests are found by their marks
`@pytest.mark.seed("000-12")`, without running them.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
KINDS = ("must", "should", "future", "trap")
TestNode = ast.FunctionDef | ast.AsyncFunctionDef
FIELDS = {"id", "kind", "text", "where", "otherwise", "why"}
CODE = re.compile(r"(\w+\.py): (\w+)(?=[,;]|$)")  # "jobs.py: render"
OPENING = """# The five specifications

Mulligan grew out of five specifications by five teams that had each built the same thing. Each is an application in
`apps/`. This page lists every requirement, its code, and the tests that prove it.

| kind | meaning |
|---|---|
| must, should | required, or recommended |
| future | postponed by the specification itself |
| trap | wrong, impossible or contradictory; the page says what is done instead |

Where several requirements share a test, a comment with the requirement's number marks its assertion.
"""


class Proof(NamedTuple):
    file: str  # from the root
    test: str


class Seed(NamedTuple):
    """One specification: docs/seeds/NNN.toml."""

    application: str
    complete: bool  # True: every must needs a test or a decision
    rows: list[dict[str, Any]]


def seeds() -> dict[str, Seed]:
    """Return the specifications by number, such as "000"."""
    files = sorted((ROOT / "docs" / "seeds").glob("*.toml"))
    read = {file.stem: tomllib.loads(file.read_text(encoding="utf-8")) for file in files}
    return {
        number: Seed(data["application"], data["complete"], data["requirement"])
        for number, data in read.items()
    }


def proofs() -> dict[str, list[Proof]]:
    """Return the tests marked with each requirement."""
    found: dict[str, list[Proof]] = {}
    for file in _test_files():
        for node, ids in _marked_nodes(ast.parse(file.read_text(encoding="utf-8"))):
            for one in ids:
                found.setdefault(one, []).append(Proof(str(file.relative_to(ROOT)), node.name))
    return found


def _test_files() -> Iterator[Path]:
    """Yield the test files that prove requirements."""
    for file in sorted([*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("apps/*/tests/**/test_*.py")]):
        if "mark.seed(" in file.read_text(encoding="utf-8"):
            yield file


def _marked_nodes(tree: ast.Module) -> Iterator[tuple[TestNode, list[str]]]:
    for node in ast.walk(tree):
        if isinstance(node, TestNode) and node.name.startswith("test_"):
            ids = [one for decorator in node.decorator_list for one in _ids(decorator)]
            if ids:
                yield node, ids


def _ids(decorator: ast.expr) -> list[str]:
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.seed":
        return [str(ast.literal_eval(argument)) for argument in decorator.args]
    return []


def unnamed_assertions() -> Iterator[str]:
    """Yield a sentence for every requirement that shares a test without naming its assertion.

    The comment `# 000-12` names it: in the test, or in a fixture, function or table of its module.
    """
    for file in _test_files():
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
        comments = [line.partition("#")[2] for line in text.splitlines()]
        for node, ids in _marked_nodes(tree):
            if len(ids) == 1:
                continue
            named = "\n".join("\n".join(comments[lines]) for lines in _lines_of(node, tree))
            for one in ids:
                if one not in named:
                    yield f"{one} shares {node.name}; add the comment # {one} to its assertion"


def _lines_of(test: TestNode, tree: ast.Module) -> Iterator[slice]:
    """Yield the lines of a test and of everything in its module that it uses."""
    parts: dict[str, ast.stmt] = {}
    for part in tree.body:
        if isinstance(part, TestNode | ast.ClassDef):
            parts[part.name] = part
        elif isinstance(part, ast.Assign):
            parts |= {one.id: part for one in part.targets if isinstance(one, ast.Name)}
    waiting: list[ast.stmt] = [test]
    while waiting:
        part = waiting.pop()
        decorators = getattr(part, "decorator_list", [])
        first = min([part.lineno, *(decorator.lineno for decorator in decorators)])
        yield slice(first - 1, part.end_lineno)
        names = {one.id for one in ast.walk(part) if isinstance(one, ast.Name)}
        names |= {one.arg for one in ast.walk(part) if isinstance(one, ast.arg)}
        waiting += [parts.pop(name) for name in names & set(parts)]


def find_problems() -> list[str]:
    """Return a sentence for everything that is missing, unknown or without a test."""
    proved = proofs()
    known = [one for seed in seeds().values() for one in seed.rows]
    required = [
        one
        for seed in seeds().values()
        if seed.complete
        for one in seed.rows
        if one["kind"] == "must"
    ]
    unknown = sorted(set(proved) - {one["id"] for one in known})
    return [
        *unnamed_assertions(),
        *(
            f"{one} is proved by {proved[one][0].test}, but no file of docs/seeds has it"
            for one in unknown
        ),
        *(f"{one['id']}: {problem}" for one in known for problem in _row_problems(one)),
        *missing_code(),
        *(
            f"{one['id']} is a must with neither a test nor a decision"
            for one in required
            if one["id"] not in proved and not one.get("otherwise")
        ),
    ]


def missing_code() -> Iterator[str]:
    """Yield a sentence for every name of code in a column `where` that its file does not have."""
    for seed in seeds().values():
        for one in seed.rows:
            for file, name in CODE.findall(one.get("where", "")):
                found = ROOT / "apps" / seed.application / file
                text = found.read_text(encoding="utf-8") if found.exists() else ""
                if not re.search(rf"\b{name}\b", text, re.IGNORECASE):
                    yield f"{one['id']}: {file} has no {name}"


def _row_problems(one: dict[str, Any]) -> Iterator[str]:
    if set(one) - FIELDS:
        yield f"unknown fields: {', '.join(sorted(set(one) - FIELDS))}"
    if one["kind"] not in KINDS:
        yield f"kind is one of {', '.join(KINDS)}, not {one['kind']!r}"
    if not one.get("text") or not (one.get("where") or one.get("otherwise")):
        yield "needs `text`, and `where` or `otherwise`"
    if bool(one.get("otherwise")) != bool(one.get("why")):
        yield "`otherwise` and `why` must be given together"


def page(notice: str) -> str:
    proved = proofs()
    chapters = [_chapter(number, seed, proved) for number, seed in seeds().items()]
    return "\n\n".join([notice, OPENING.rstrip(), *chapters]) + "\n"


def _chapter(number: str, seed: Seed, proved: dict[str, list[Proof]]) -> str:
    app, tested = seed.application, sum(one["id"] in proved for one in seed.rows)
    summary = f"[`apps/{app}`](../../apps/{app}/README.md): {len(seed.rows)} requirements, {tested} with a test of their own."
    table = ["| | kind | requirement | where | proved by |", "|---|---|---|---|---|"]
    table += [_row(one, proved.get(one["id"], [])) for one in seed.rows]
    return f"## {number}: {app}\n\n{summary}\n\n" + "\n".join(table)


def _row(one: dict[str, Any], tests: list[Proof]) -> str:
    text = one["text"]
    if one.get("otherwise"):
        text += f". **Otherwise here:** {one['otherwise']}; {one['why']}"
    shown = "<br>".join(
        f"[{test.test.removeprefix('test_').replace('_', ' ')}](../../{test.file})"
        for test in tests
    )
    cells = (one["id"], one["kind"], text, one.get("where", ""), shown)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
