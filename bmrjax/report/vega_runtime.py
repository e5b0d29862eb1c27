"""Vega, as one script for a page without network, and charts compiled for it."""

import copy
import functools
from collections.abc import Mapping
from typing import Any

from bmrjax.report.charts import CHART_CONFIG

# The two names of Vega that a page uses. The bundler leaves out what they do not need: this takes 581 KB,
# and all of Vega, Vega-Lite and vega-embed 898 KB. Vega-Lite is compiled before.
_SNIPPET = """import {{View, parse}} from "https://cdn.jsdelivr.net/npm/vega@{version}/+esm";
window.vega = {{View, parse}};"""


@functools.cache
def vega_script() -> str:
    """Return Vega as JavaScript, which puts `View` and `parse` into ``window.vega``.

    It comes out of the package vl-convert-python; nothing is fetched.

    Raises:
        ImportError: Without the package vl-convert-python.
    """
    vl_convert: Any = _vl_convert()
    script = vl_convert.javascript_bundle(_SNIPPET.format(version=vl_convert.get_vega_version()))
    if "</script" in script or "<!--" in script:  # else it would end where it must not
        script = script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return script


def compiled_chart(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Vega-Lite chart as Vega.

    Args:
        spec: Vega-Lite; see `charts`.

    Raises:
        ValueError: If it is not Vega-Lite.
        ImportError: Without the package vl-convert-python.
    """
    given = copy.deepcopy(dict(spec)) | {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "config": CHART_CONFIG,
    }
    compiled = _vl_convert().vegalite_to_vega(given)
    compiled.pop("$schema", None)
    return compiled


def _vl_convert() -> Any:
    try:
        import vl_convert
    except ImportError as error:
        raise ImportError(
            f"Reports need the package vl-convert-python ({error}). Install it by pip install "
            "'bmrjax[report]'."
        ) from None
    return vl_convert
