"""Generate src/mulligan/app/aio.pyi, the types of `app.aio`. Used by `generate.py`."""

from __future__ import annotations

import ast
import builtins
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SERVICES = "mulligan.app.services"
HEADER = '''\
"""Types of `app.aio`. Written by docs/generate.py from the services. Do not edit."""
'''
RUN_ON_THREAD = (
    'T = TypeVar("T")\n'
    "async def run_on_thread(method: Callable[..., T], *args: Any, **options: Any) -> T: ..."
)
INTERNAL_TYPES = {"NewBatch", "NewJob", "Transaction"}  # methods with these are for the app itself
KEEP_SIGNATURE = {"overload", "name_unknown_options"}  # decorators
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Service(NamedTuple):
    """A property of `Services` with the class that it returns."""

    name: str
    module: str
    cls: str


def page(notice: str) -> str:
    """Return the text of the stub."""
    del notice  # for Markdown
    services = list(_services())
    imports = {("typing", "Any"), ("typing", "TypeVar"), ("collections.abc", "Callable")}
    classes = []
    for service in services:
        tree = _parse(service.module)
        methods = list(_methods(_find_class(tree, service.cls)))
        imports |= _imports(tree, service.module, methods)
        classes.append(_class_text(service, methods))
    names = "".join(f"    {service.name}: Async{service.cls}\n" for service in services)
    facade = f"{RUN_ON_THREAD}\n\nclass AsyncServices:\n    def __init__(self, services: Any) -> None: ...\n{names}"
    return "\n".join((HEADER, *_import_lines(imports), "", *classes, facade))


def _import_lines(imports: set[tuple[str, str]]) -> Iterator[str]:
    for module in sorted({module for module, _ in imports}):
        names = sorted(name for origin, name in imports if origin == module)
        yield f"from {module} import {', '.join(names)}"


def _parse(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    path = Path(spec.origin or "") if spec is not None else Path()
    return ast.parse(path.read_text(encoding="utf-8"))


def _find_class(tree: ast.Module, name: str) -> ast.ClassDef:
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return found[0]


def _services() -> Iterator[Service]:
    """Yield the services: each property imports the class that it returns."""
    for node in _find_class(_parse(SERVICES), "Services").body:
        if isinstance(node, ast.FunctionDef) and _is_decorated(node, "cached_property"):
            source = next(line for line in node.body if isinstance(line, ast.ImportFrom))
            yield Service(node.name, source.module or "", source.names[0].name)


def _keeps_signature(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id in KEEP_SIGNATURE


def _is_decorated(node: Function, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in node.decorator_list)


def _methods(cls: ast.ClassDef) -> Iterator[Function]:
    """Yield public methods; of an overloaded method its overloads only."""
    functions = [node for node in cls.body if isinstance(node, ast.FunctionDef)]
    overloaded = {node.name for node in functions if _is_decorated(node, "overload")}
    for node in functions:
        is_overload = _is_decorated(node, "overload")
        if (
            node.name.startswith("_")
            or node.name.endswith("_async")
            or any(not _keeps_signature(each) for each in node.decorator_list)
        ):
            continue
        if not INTERNAL_TYPES.isdisjoint(_names(node.args)):
            continue
        if node.name not in overloaded or is_overload:
            yield node


def _class_text(service: Service, methods: list[Function]) -> str:
    lines = [
        f"class Async{service.cls}:",
        f'    """`app.aio.{service.name}`: the methods of `{service.cls}`, awaitable."""',
    ]
    for method in methods:
        if _is_decorated(method, "overload"):
            lines.append("    @overload")
        returns = ast.unparse(method.returns or ast.Constant(None))
        prefix = "async def"
        if returns.startswith("Iterator["):  # not awaited: `async for` over what it returns
            returns = f"Async{returns}"
            prefix = "def"
        lines.append(f"    {prefix} {method.name}({_arguments(method)}) -> {returns}:")
        summary = (ast.get_docstring(method) or "").partition("\n")[0]
        lines.append(f'        """{summary}"""' if summary else "        ...")
    return "\n".join(lines) + "\n"


def _arguments(method: Function) -> str:
    """Return the parameters. A default that is not a literal is written as `...`."""
    arguments = method.args
    arguments.defaults = [_literal(each) for each in arguments.defaults]
    arguments.kw_defaults = [each and _literal(each) for each in arguments.kw_defaults]
    return ast.unparse(arguments)


def _literal(default: ast.expr) -> ast.expr:
    is_literal = isinstance(default, ast.Constant) or not list(_names(default))
    return default if is_literal else ast.Constant(...)


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and not hasattr(builtins, each.id):
            yield each.id


def _imports(tree: ast.Module, module: str, methods: list[Function]) -> set[tuple[str, str]]:
    """Return (module, name) for every name in the signatures."""
    origins = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
    used = {name for method in methods for part in _signature(method) for name in _names(part)}
    return {(origins.get(name, module), name) for name in used}


def _signature(method: Function) -> Iterator[ast.AST]:
    arguments = method.args
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from filter(None, (arguments.vararg, arguments.kwarg, method.returns))
    if _is_decorated(method, "overload"):
        yield ast.Name("overload")
    if "Iterator" in ast.dump(method):
        yield ast.Name("AsyncIterator")
