"""Pages of the reference, one per public module, written from the code when the site is built.

A page has the module's docstring, a table of its names with one line each, and the docstring of every name:
shapes, formulas, errors, sources, example. A name without an example of its own is given the names whose
examples use it. Nothing is listed by hand but what few modules with internal functions offer.
"""

import importlib
import inspect
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import bmrjax

ROOT = Path(bmrjax.__file__).parent
DOCS = Path(__file__).parents[1]
# Modules that also define what only the library itself uses: the names for users.
OFFERED = {
    "families": """read stored affine location FamilyFacts facts has_closed_form removed Shown shown_elements
        GuideForm GuideSite default_form offer""",
    "handlers": """prune scale_elbo inference hide_data complete_missing fast_noise at_step training_step
        current_masks""",
}
# Public in `bmrjax` itself, from packages that are internal otherwise.
TITLES = {
    "run": "The loop and its results",
    "errors": "Errors and warnings",
    "judge": "Predicted and measured free energy",
}
# Parts of a class that every class of its kind has.
SKIPPED = {"tree_flatten", "tree_flatten_with_keys", "tree_unflatten", "with_traceback", "add_note"}


@dataclass
class Page:
    """Names on a page of the reference, by their public path."""

    module: str
    names: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Heading of the page."""
        words = TITLES.get(self.module)
        return words if words else f"bmrjax.{self.module}"

    @property
    def summary(self) -> str:
        """First paragraph of the module's docstring."""
        module = importlib.import_module(f"bmrjax.{self.module}")
        text = inspect.getdoc(module) or ""
        return " ".join(text.split("\n\n")[0].split())


def public_modules() -> list[str]:
    """Return the modules that ``bmrjax/__init__.pyi`` offers, and the families, which extensions need."""
    found = re.findall(r"^from \. import (\w+) as", (ROOT / "__init__.pyi").read_text(), re.M)
    return sorted([*found, "families"])


def top_names() -> dict[str, str]:
    """Return the functions and classes of `bmrjax` itself, and the package that each comes from."""
    text = (ROOT / "__init__.pyi").read_text()
    found = re.findall(r"^from \.(\w+)[\w.]* import (\w+) as", text, re.M)
    return {name: package for package, name in found}


def _offered(module: str) -> list[str]:
    """Return the names that a module offers to users."""
    loaded = importlib.import_module(f"bmrjax.{module}")
    if module in OFFERED:
        return OFFERED[module].split()
    path = Path(str(loaded.__file__))
    stub = path.with_suffix(".pyi")
    text = (stub if stub.exists() else path).read_text()
    again = re.findall(r"^\s*from [\w.]+ import (\w+) as \1\b", text, re.M)
    if again:
        return again
    own = loaded.__name__
    return [
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == own
        and callable(value)
    ]


def pages() -> dict[str, Page]:
    """Return all pages of the reference. Each public object is on one of them."""
    found: dict[str, Page] = {}
    seen: set[int] = set()
    for name, package in top_names().items():
        value = getattr(bmrjax, name)
        seen.add(id(value))
        found.setdefault(package, Page(package)).names[f"bmrjax.{name}"] = value
    for module in public_modules():
        page = found.setdefault(module, Page(module))
        loaded = importlib.import_module(f"bmrjax.{module}")
        for name in _offered(module):
            value = getattr(loaded, name)
            inner = getattr(value, "__module__", "")
            if inspect.ismodule(value) or not callable(value) or id(value) in seen:
                continue
            if module not in OFFERED and not inner.startswith("bmrjax"):
                continue
            seen.add(id(value))
            page.names[f"bmrjax.{module}.{name}"] = value
    return {module: page for module, page in sorted(found.items()) if page.names}


def members(cls: type, public: Collection[type] = ()) -> list[str]:
    """Return the documented methods and properties of a class that the library itself defines.

    What a class only has in common with a `public` base is documented there.
    """
    found: dict[str, None] = {}
    shared = {name for base in cls.__mro__[1:] if base in public for name in vars(base)}
    for base in cls.__mro__:
        if not base.__module__.startswith("bmrjax"):
            continue
        for name, value in vars(base).items():
            if (
                name.startswith("_")
                or name in SKIPPED | shared
                or name in getattr(cls, "_fields", ())
            ):
                continue
            if type(value).__module__.startswith("sklearn"):
                continue
            plain = getattr(value, "__func__", value)
            is_property = isinstance(plain, property) or hasattr(plain, "func")
            if (inspect.isroutine(plain) or is_property) and inspect.getdoc(getattr(cls, name)):
                found[name] = None
    return list(found)


def has_example(value: Any, everything: Mapping[str, Any] = MappingProxyType({})) -> bool:
    """Say whether the docstring of an object, or of one of its own methods, has an example.

    Args:
        value: A function or a class.
        everything: The public names; what a class has in common with a public base does not count.
    """
    texts = [inspect.getdoc(value) or ""]
    if inspect.isclass(value):
        public = [thing for thing in everything.values() if inspect.isclass(thing)]
        texts += [inspect.getdoc(getattr(value, name)) or "" for name in members(value, public)]
    return any(">>>" in text for text in texts)


def used_by(name: str, value: Any, everything: dict[str, Any]) -> list[str]:
    """Return the public names whose examples use `name`, or that return it."""
    short = name.rsplit(".", 1)[-1]
    found = []
    for other, thing in everything.items():
        if other == name:
            continue
        text = inspect.getdoc(thing) or ""
        lines = "\n".join(line for line in text.splitlines() if re.match(r"\s*(>>>|\.\.\.)", line))
        if re.search(rf"(?<![\w]){short}\b", lines):
            found.append(other)
        elif inspect.isclass(value) and ">>>" in text and inspect.isroutine(thing):
            returned = str(getattr(thing, "__annotations__", {}).get("return", ""))
            if re.search(rf"\b{short}\b", returned):
                found.append(other)
    return found[:3]


def pages_that_use(name: str, folder: Path) -> list[str]:
    """Return the pages, at most two, whose blocks of Python use a name."""
    short = re.compile(rf"\.{name.rsplit('.', 1)[-1]}\b")
    found = []
    for path in sorted(
        [*folder.glob("*.md"), *folder.glob("howto/*.md"), *folder.glob("start/*.md")]
    ):
        blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
        if any(short.search(block) for block in blocks):
            found.append("/" + path.relative_to(folder).with_suffix("").as_posix())
    return found[:2]


def _first_line(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    line = " ".join(text.split("\n\n")[0].split())
    return line.replace("|", "\\|")


def _entry(name: str, value: Any, everything: dict[str, Any]) -> list[str]:
    """Return the lines of one name."""
    lines = []
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        lines.append(f".. {kind}:: {name}")
        public = [thing for thing in everything.values() if inspect.isclass(thing)]
        if found := members(value, public):
            lines.append(f"   :members: {', '.join(found)}")
    else:
        lines.append(f".. autofunction:: {name}")
    others = [] if has_example(value, everything) else used_by(name, value, everything)
    if others:
        links = ", ".join(f":py:obj:`~{other}`" for other in others)
        lines += ["", f"   In use: the example of {links}."]
    elif not has_example(value, everything) and (found := pages_that_use(name, DOCS)):
        links = ", ".join(f":doc:`{page}`" for page in found)
        lines += ["", f"   In use: {links}."]
    return [*lines, ""]


def page_text(page: Page, everything: dict[str, Any]) -> str:
    """Return the Markdown of one page."""
    rows = [f"| {{py:obj}}`~{name}` | {_first_line(value)} |" for name, value in page.names.items()]
    code = importlib.import_module(f"bmrjax.{page.module}")
    doc = inspect.getdoc(code) or ""
    parts = [f"# {page.title}", "```{eval-rst}", doc, "```" if doc else "```"]
    parts += [
        "",
        ":::{div} names",
        "| name | what it is |",
        "|---|---|",
        *rows,
        ":::",
        "",
        "```{eval-rst}",
        ".. currentmodule:: bmrjax",
        "",
    ]
    for name, value in page.names.items():
        parts += _entry(name, value, everything)
    return "\n".join([*parts, "```", ""])


def write(folder: Path) -> None:
    """Write the pages, leaving those that have not changed, and take away what is no longer there."""
    folder.mkdir(exist_ok=True)
    found = pages()
    everything = {name: value for page in found.values() for name, value in page.names.items()}
    texts = {f"{module}.md": page_text(page, everything) for module, page in found.items()}
    for old in folder.glob("*.md"):
        if old.name not in texts:
            old.unlink()
    for file, text in texts.items():
        path = folder / file
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
