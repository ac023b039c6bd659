"""Python in Markdown, run: the comment of an expression must be its value."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from typing import Any

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_snippets(text: str, name: str) -> int:
    """Run every block marked `python`, in order and in one namespace; give the number of values checked.

    A comment behind an expression, or in the lines that follow it, is its `repr`, or `Kind: message` of the
    error that it raises (its class or one above), with `...` for anything. Other comments are prose.
    """
    namespace: dict[str, Any] = {}
    checked = 0
    for block in _BLOCK.finditer(text):
        above = text.count("\n", 0, block.start(1))
        comments = _comments(block[1])
        for statement in ast.parse(block[1]).body:
            expected = _after(statement, comments) if isinstance(statement, ast.Expr) else ""
            ast.increment_lineno(statement, above)
            try:
                found = _run(statement, name, namespace)
            except Exception as error:
                kinds = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, Exception)]
                if (kind := expected.partition(":")[0]) not in kinds:
                    raise
                found = f"{kind}: {error}"
            if expected:
                where = f"{name}:{statement.lineno}"
                same = OutputChecker().check_output(expected, found, ELLIPSIS | NORMALIZE_WHITESPACE)
                assert same, f"{where}: {ast.unparse(statement)}\n  says {expected}\n  is   {found}"
                checked += 1
    return checked


def _run(statement: ast.stmt, name: str, namespace: dict[str, Any]) -> str:
    if isinstance(statement, ast.Expr):
        return repr(eval(compile(ast.Expression(statement.value), name, "eval"), namespace))
    exec(compile(ast.Module([statement], []), name, "exec"), namespace)
    return ""


def _comments(code: str) -> dict[int, tuple[bool, str]]:
    """Comments by line: whether each has the line to itself, and its text."""
    return {
        token.start[0]: (token.line.lstrip().startswith("#"), token.string.lstrip("# "))
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    }


def _after(statement: ast.stmt, comments: dict[int, tuple[bool, str]]) -> str:
    line = statement.end_lineno or statement.lineno
    lines = [comments[line][1]] if line in comments else []
    while (following := comments.get(line := line + 1)) and following[0]:
        lines.append(following[1])
    return "\n".join(lines)
