"""Join the web page's JavaScript modules for the first view: one script in place of about twenty files.

A browser fetches six files at a time, and a module runs only after all of its imports are there. Each joined module
keeps its own scope, a function that returns the module's exports; its text is otherwise unchanged. The script is in the
start page itself, from which nothing can be imported, so it leaves its scopes in SCOPES for modules fetched later.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence

_IMPORT = re.compile(
    r"""^import\s+(?:(?P<names>\{[^}]*\}|\*\s+as\s+\w+)\s*from\s*)?(?P<quote>["'])(?P<target>[^"']+)(?P=quote);?""",
    re.MULTILINE,
)
_LATER = re.compile(r"""\bimport\(\s*(?P<quote>["'])(?P<target>[^"']+)(?P=quote)\s*\)""")
_EXPORT = re.compile(r"^export\s+(?=(?:async\s+)?(?:const|function\*?|class)\s+(?P<name>[\w$]+))", re.MULTILINE)
_RENAMED = re.compile(r"(\w+)\s+as\s+(\w+)")
_OTHERWISE = re.compile(r"^(?:import|export)\b(?!\()[^\n]*|^.*\bimport\.meta\b[^\n]*", re.MULTILINE)
"""Matches imports and exports in other forms, which can't be put into a function."""
SCOPES = "likeness"
"""Global name of the joined modules' scopes."""


def join_modules(modules: Mapping[str, str], begun: Sequence[str], folder: str) -> tuple[str, dict[str, str]]:
    """Return the modules to serve: ``begun`` and all their imports as one script, and the others.

    Args: modules: Text by path, `views/home.js`. begun: The modules that run when the page begins, in this order.
    folder: The address of the modules' folder, which the script imports the others from.

    Raises ValueError if a module imports or exports in a way that can't be joined, or if two import each other.
    """
    joined: dict[str, str] = {}  # names of the functions; modules come before those that import them
    for name in begun:
        _collect(modules, name, joined, ())
    parts = [_scope(modules, name, joined, folder) for name in joined]
    script = "".join(parts) + f"globalThis.{SCOPES} = Object.freeze({{ {', '.join(joined.values())} }});\n"
    return script, {name: _from_outside(modules, name, joined) for name in modules if name not in joined}


def imported(modules: Mapping[str, str], name: str) -> list[str]:
    """Return the paths of the modules that this one imports at its beginning."""
    targets = (_path(name, found["target"]) for found in _IMPORT.finditer(modules[name]))
    return [target for target in targets if target in modules]


def _collect(modules: Mapping[str, str], name: str, joined: dict[str, str], above: tuple[str, ...]) -> None:
    if name in above:
        raise ValueError(f"{name} and {above[-1]} import each other; the page's modules must not.")
    if name in joined:
        return
    for target in imported(modules, name):
        _collect(modules, target, joined, (*above, name))
    stem = re.sub(r"\W", "_", name.removesuffix(".js"))
    joined[name] = f"${len(joined)}_{stem}"


def _scope(modules: Mapping[str, str], name: str, joined: Mapping[str, str], folder: str) -> str:
    """Return the module as `const $3_dom = (() => { … return { h, put }; })();`."""
    text = modules[name]
    exported = [found["name"] for found in _EXPORT.finditer(text)]

    def take_later(found: re.Match[str]) -> str:
        target = _path(name, found["target"])
        return f"Promise.resolve({joined[target]})" if target in joined else f'import("{folder}{target}")'

    text = _IMPORT.sub(lambda found: _taken(found, joined.get(_path(name, found["target"]))), text)
    text = _LATER.sub(take_later, _EXPORT.sub("", text))
    if left := _OTHERWISE.search(text):
        raise ValueError(f"{name}: the page begins with this module, and can't join: {left[0].strip()}")
    return f"const {joined[name]} = (() => {{\n{text}return {{ {', '.join(exported)} }};\n}})();\n"


def _taken(found: re.Match[str], scope: str | None) -> str:
    """Return the statement that takes from ``scope`` what the import takes from its module, in as many lines."""
    if scope is None:
        return found[0]  # not a joined module
    names, lines = found["names"] or "", "\n" * found[0].count("\n")
    if not names:
        return lines
    if names.startswith("*"):
        return f"const {names.rpartition(' ')[2]} = {scope};{lines}"
    taken = " ".join(_RENAMED.sub(r"\1: \2", names).split())
    return f"const {taken} = {scope};{lines}"


def _from_outside(modules: Mapping[str, str], name: str, joined: Mapping[str, str]) -> str:
    """Return a module that isn't joined, changed to take imports from joined modules out of SCOPES."""

    def scope(found: re.Match[str]) -> str | None:
        constant = joined.get(_path(name, found["target"]))
        return f"{SCOPES}.{constant}" if constant else None

    text = _IMPORT.sub(lambda found: _taken(found, scope(found)), modules[name])
    return _LATER.sub(lambda found: f"Promise.resolve({value})" if (value := scope(found)) else found[0], text)


def _path(name: str, target: str) -> str:
    """Return the path of the import ``target`` in the module ``name``."""
    if target.startswith("/page/"):
        return target.removeprefix("/page/")
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
