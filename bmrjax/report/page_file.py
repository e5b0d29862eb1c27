"""A page as one file of HTML."""

import json
from pathlib import Path
from typing import Any

from bmrjax.files import write_atomically
from bmrjax.report.blocks import Chart, Explorer, Page
from bmrjax.report.charts import path_chart
from bmrjax.report.vega_runtime import compiled_chart, vega_script

_HERE = Path(__file__).parent


def write_page(page: Page, path: str | Path) -> Path:
    """Write a page as one file that needs no network.

    Styles, scripts and data are in the file. It is written whole or not at all.

    Args:
        page: What it shows.
        path: Of the file, which ends in .html or .htm; one that is there is replaced.

    Returns:
        The path.

    Raises:
        ValueError: If the path does not end in .html or .htm.
        OSError: If the page cannot be written, or the limits on memory of this process (`ulimit -v`) leave
            no room for the engine that makes its charts.
        ImportError: Without the packages jinja2 and vl-convert-python.

    Example:
        >>> import tempfile
        >>> from bmrjax import report
        >>> page = report.Page("A title", "What was found.", [("Kept", "3", "of 10")], [])
        >>> report.write_page(page, tempfile.mkdtemp() + "/page.html").name
        'page.html'
    """
    path = check_page_name(path)
    write_atomically(path, page_html(page))
    return path


def check_page_name(path: str | Path) -> Path:
    """Return the path of a page; raise ValueError for a name that does not end in .html or .htm."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"A report is a file whose name ends in .html or .htm, got {path}.")
    return path


def page_html(page: Page) -> str:
    """Return a page as HTML.

    Args:
        page: What it shows.

    Raises:
        OSError: If the limits on memory of this process leave no room for the engine that makes its charts.
        ImportError: Without the packages jinja2 and vl-convert-python.
    """
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(
            f"Reports need the package jinja2 ({error}). Install it by pip install 'bmrjax[report]'."
        ) from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    charts: list[dict[str, Any]] = []

    def place(chart: Chart) -> int:
        charts.append(compiled_chart(chart.spec))
        return len(charts) - 1

    def charts_of(explorer: Explorer) -> list[Chart]:
        return [
            Chart(m.label, f"{m.label} against {explorer.axis.lower()}.", path_chart(explorer, m))
            for m in explorer.measures
            if sum(value is not None for value in m.values) > 1
            and m.name not in ("kept", "removed")
        ]

    return environment.get_template("page.html.jinja").render(
        page=page,
        place=place,
        charts_of=charts_of,
        style=(_HERE / "page.css").read_text(),
        code=(_HERE / "page.js").read_text(),
        vega=vega_script(),
        as_script=as_script,
        charts=charts,
        explored=_explored,
    )


def as_script(value: Any) -> str:
    r"""Return JSON that can stand inside a script of a page, whatever texts it holds.

    Example:
        >>> as_script({"name": "</script><b>"})
        '{"name":"\\u003c/script\\u003e\\u003cb\\u003e"}'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _explored(explorer: Explorer) -> list[dict[str, Any]]:
    """Return what the slider shows at each point."""
    return [
        {
            "title": step.title,
            "mark": step.mark,
            "shown": {m.name: m.shown[i] or "not measured" for m in explorer.measures},
        }
        for i, step in enumerate(explorer.steps)
    ]
