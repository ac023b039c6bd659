"""Code in Markdown, run: the comment of an expression in Python must be its value."""

from __future__ import annotations

import ast
import io
import re
import shlex
import tokenize
from collections.abc import Callable
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from typing import Any

_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_snippets(
    text: str,
    name: str,
    namespace: dict[str, Any] | None = None,
    command: Callable[[list[str]], None] | None = None,
) -> int:
    """Run every block marked `python`, in order and in one namespace; give the number of values checked.

    The comment in the lines that follow an expression, else the one behind it, is its `repr`, or `Kind:
    message` of the error that it raises (its class or one above), with `...` for anything. Other comments are
    prose.

    Args:
        text, name: of the document.
        namespace: names that its blocks take for granted.
        command: runs each command of the blocks marked `sh`, between the blocks; None: they are left out.
    """
    namespace = {} if namespace is None else namespace
    checked = 0
    for block in _BLOCK.finditer(text):
        if block[1] == "sh":
            for line in commands(block[2]) if command else []:
                command(line)
            continue
        above = text.count("\n", 0, block.start(2))
        comments = _comments(block[2])
        for statement in ast.parse(block[2]).body:
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


def commands(block: str) -> list[list[str]]:
    r"""The commands of a block of shell, each as its words.

    >>> commands("pip install . && capeval demo  # no network\ncapeval score pacs \\\n  --w 2")
    [['pip', 'install', '.'], ['capeval', 'demo'], ['capeval', 'score', 'pacs', '--w', '2']]
    """
    lines = block.replace("\\\n", " ").splitlines()
    words = [shlex.split(part, comments=True) for line in lines for part in line.split(" && ")]
    return [each for each in words if each]


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
    line = end = statement.end_lineno or statement.lineno
    lines = []
    while (following := comments.get(line := line + 1)) and following[0]:
        lines.append(following[1])
    return "\n".join(lines) if lines else comments.get(end, (False, ""))[1]
