"""docs/operate/security-checks.md: every check, and the tests that prove it.

Words and reasons are in docs/security/checks.toml. Which test proves what is read from the marks
`@pytest.mark.security("S01")` in the tests, without running them.
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
[Security](security.md) says what is defended and what is not.

{told}
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
    """By check, the tests that are marked with it."""
    found: dict[str, list[Proof]] = {}
    for file in sorted(ROOT.glob("tests/**/test_*.py")):
        text = file.read_text(encoding="utf-8")
        if "mark.security(" not in text:
            continue
        tree = ast.parse(text)
        whole = [one for node in tree.body if isinstance(node, ast.Assign) for one in _all_of(node)]
        for test, ids in _marked(tree):
            for one in dict.fromkeys([*whole, *ids]):
                found.setdefault(one, []).append(Proof(str(file.relative_to(ROOT)), test))
    return found


def _all_of(node: ast.Assign) -> list[str]:
    """What the mark of a whole file says."""
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


def wrong() -> list[str]:
    """What is missing, unknown or without proof, in sentences."""
    proved, known = proofs(), checks()
    names = [one["id"] for one in known]
    return [
        *(
            f"{one} is proved by {proved[one][0].test}, but checks.toml has no such check"
            for one in sorted(set(proved) - set(names))
        ),
        *(
            f"{one} is there twice"
            for one in sorted({name for name in names if names.count(name) > 1})
        ),
        *(f"{one['id']}: {trouble}" for one in known for trouble in _troubles(one, proved)),
    ]


def _troubles(one: dict[str, str], proved: dict[str, list[Proof]]) -> Iterator[str]:
    if set(one) - FIELDS:
        yield f"nobody knows {', '.join(sorted(set(one) - FIELDS))}"
    if bool(one.get("otherwise")) != bool(one.get("why")):
        yield "what is done otherwise needs its reason (why), and the other way round"
    if one["id"] not in proved and not one.get("otherwise"):
        yield "neither a test nor a reason"


def page(notice: str) -> str:
    proved, known = proofs(), checks()
    tests = {proof for one in known for proof in proved.get(one["id"], [])}
    tested = sum(one["id"] in proved for one in known)
    told = f"{len(known)} checks, {tested} of them with tests ({len(tests)} in all)."
    parts = [_chapter(chapter, proved) for chapter in chapters()]
    return "\n\n".join([notice, OPENING.format(told=told).rstrip(), *parts]) + "\n"


def _chapter(chapter: dict[str, Any], proved: dict[str, list[Proof]]) -> str:
    rows = ["| | check | proved by |", "|---|---|---|"]
    rows += [_row(one, proved.get(one["id"], [])) for one in chapter["checks"]]
    return f"## {chapter['title']}\n\n" + "\n".join(rows)


def _row(one: dict[str, str], tests: list[Proof]) -> str:
    said = one["text"]
    if one.get("otherwise"):
        said += f". **Otherwise here:** {one['otherwise']}; {one['why']}"
    shown = "<br>".join(
        f"[{test.test.removeprefix('test_').replace('_', ' ')}](../../{test.file})"
        for test in tests
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (one["id"], said, shown)) + " |"
