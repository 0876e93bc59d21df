"""Generate docs/contributors/security-checks.md: every check and the tests that prove it.

Texts and reasons are in docs/security/checks.toml. The tests are found by their marks
`@pytest.mark.security("S01")`, without running them.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
FIELDS = {"id", "text", "otherwise", "why"}
MARK = "pytest.mark.security"
OPENING = """# Security checks

Every check has a test that runs with `make test` or `make slow`, or a reason why it is handled differently.
[Security](../operate/security.md) says what is defended and what is not.

{counts}
"""


class Proof(NamedTuple):
    file: str  # from the root
    test: str


def chapters() -> list[dict[str, Any]]:
    text = (ROOT / "docs" / "security" / "checks.toml").read_text(encoding="utf-8")
    return list(tomllib.loads(text)["chapter"])


def checks() -> list[dict[str, str]]:
    return [check for chapter in chapters() for check in chapter["checks"]]


def proofs() -> dict[str, list[Proof]]:
    """Return the tests marked with each check."""
    found: dict[str, list[Proof]] = {}
    for file in sorted(ROOT.glob("tests/**/test_*.py")):
        text = file.read_text(encoding="utf-8")
        if "mark.security(" not in text:
            continue
        tree = ast.parse(text)
        whole = [
            one for node in tree.body if isinstance(node, ast.Assign) for one in _file_marks(node)
        ]
        for test, ids in _marked(tree):
            for one in dict.fromkeys([*whole, *ids]):
                found.setdefault(one, []).append(Proof(str(file.relative_to(ROOT)), test))
    return found


def _file_marks(node: ast.Assign) -> list[str]:
    """Return the checks that the `pytestmark` of a file names."""
    if "pytestmark" not in [ast.unparse(target) for target in node.targets]:
        return []
    return [one for call in ast.walk(node.value) for one in _ids(call)]


def _marked(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            yield node.name, [one for decorator in node.decorator_list for one in _ids(decorator)]


def _ids(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == MARK:
        return [str(ast.literal_eval(argument)) for argument in node.args]
    return []


def find_problems() -> list[str]:
    """Return a sentence for everything that is missing, unknown or without a test."""
    proved, known = proofs(), checks()
    names = [one["id"] for one in known]
    return [
        *(
            f"{one} is proved by {proved[one][0].test}, but checks.toml has no such check"
            for one in sorted(set(proved) - set(names))
        ),
        *(
            f"{one} is listed twice"
            for one in sorted({name for name in names if names.count(name) > 1})
        ),
        *(f"{one['id']}: {problem}" for one in known for problem in _row_problems(one, proved)),
    ]


def _row_problems(one: dict[str, str], proved: dict[str, list[Proof]]) -> Iterator[str]:
    if set(one) - FIELDS:
        yield f"unknown fields: {', '.join(sorted(set(one) - FIELDS))}"
    if bool(one.get("otherwise")) != bool(one.get("why")):
        yield "`otherwise` and `why` must be given together"
    if one["id"] not in proved and not one.get("otherwise"):
        yield "neither a test nor a reason"


def page(notice: str) -> str:
    proved, known = proofs(), checks()
    tests = {proof for one in known for proof in proved.get(one["id"], [])}
    tested = sum(one["id"] in proved for one in known)
    counts = f"{len(known)} checks, {tested} of them with tests ({len(tests)} in all)."
    parts = [_chapter(chapter, proved) for chapter in chapters()]
    return "\n\n".join([notice, OPENING.format(counts=counts).rstrip(), *parts]) + "\n"


def _chapter(chapter: dict[str, Any], proved: dict[str, list[Proof]]) -> str:
    rows = ["| | check | proved by |", "|---|---|---|"]
    rows += [_row(one, proved.get(one["id"], [])) for one in chapter["checks"]]
    return f"## {chapter['title']}\n\n" + "\n".join(rows)


def _row(one: dict[str, str], tests: list[Proof]) -> str:
    text = one["text"]
    if one.get("otherwise"):
        text += f". **Otherwise here:** {one['otherwise']}; {one['why']}"
    shown = "<br>".join(
        f"[{test.test.removeprefix('test_').replace('_', ' ')}](../../{test.file})"
        for test in tests
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (one["id"], text, shown)) + " |"
