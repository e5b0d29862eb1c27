"""Vega, as one script for a page without network, and charts compiled for it."""

import copy
import functools
import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from bmrjax.report.charts import CHART_CONFIG

# The two names of Vega that a page uses. The bundler leaves out what they do not need: this takes 581 KB,
# and all of Vega, Vega-Lite and vega-embed 898 KB. Vega-Lite is compiled before.
_SNIPPET = """import {{View, parse}} from "https://cdn.jsdelivr.net/npm/vega@{version}/+esm";
window.vega = {{View, parse}};"""

# A call of vl_convert in a process of its own, isolated but for the path of modules.
_CHILD = """import json, sys
given = json.load(sys.stdin)
sys.path[:] = given["path"]
import vl_convert
try:
    answer = {"answer": getattr(vl_convert, given["name"])(given["argument"])}
except ValueError as error:
    answer = {"error": str(error)}
json.dump(answer, sys.stdout)
"""


@functools.cache
def vega_script() -> str:
    """Return Vega as JavaScript, which puts `View` and `parse` into ``window.vega``.

    It comes out of the package vl-convert-python; nothing is fetched.

    Raises:
        OSError: If the limits on memory of this process leave no room for V8, or the child process that is
            used under such limits fails in another way.
        ImportError: Without the package vl-convert-python.
    """
    version = _vl_convert().get_vega_version()
    script = _called("javascript_bundle", _SNIPPET.format(version=version))
    if "</script" in script or "<!--" in script:  # else it would end where it must not
        script = script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return script


def compiled_chart(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Vega-Lite chart as Vega.

    Args:
        spec: Vega-Lite; see `charts`.

    Raises:
        ValueError: If it is not Vega-Lite.
        OSError: If the limits on memory of this process leave no room for V8, or the child process that is
            used under such limits fails in another way.
        ImportError: Without the package vl-convert-python.
    """
    given = copy.deepcopy(dict(spec)) | {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "config": CHART_CONFIG,
    }
    compiled = _called("vegalite_to_vega", given)
    compiled.pop("$schema", None)
    return compiled


def _called(name: str, argument: Any) -> Any:
    """Call a function of vl_convert, in a child process where V8 might abort for want of addresses."""
    vl_convert = _vl_convert()
    if not (_memory_is_limited() and sys.executable):
        return getattr(vl_convert, name)(argument)
    ended = subprocess.run(
        [sys.executable, "-I", "-c", _CHILD],
        input=json.dumps({"path": sys.path, "name": name, "argument": argument}),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if ended.returncode > 0:
        said = ended.stderr.strip().splitlines() or [f"it ended with status {ended.returncode}"]
        raise OSError(
            f"The charts of a report could not be made in a child process: {said[-1]:.300}"
        )
    if ended.returncode:
        by = signal.Signals(-ended.returncode).name
        raise OSError(
            "The charts of a report are made by V8, which reserves more than 64 GB of addresses, hardly any "
            f"of which become memory. Under the limits of this process it ended by {by}. Make the report "
            "where `ulimit -v` and `ulimit -d` print unlimited; the run itself needs no V8."
        )
    answer = json.loads(ended.stdout)
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer["answer"]


def _memory_is_limited() -> bool:
    try:
        import resource
    except ImportError:  # not on Windows
        return False
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    return any(resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in kinds)


def _vl_convert() -> Any:
    try:
        import vl_convert
    except ImportError as error:
        raise ImportError(
            f"Reports need the package vl-convert-python ({error}). Install it by pip install "
            "'bmrjax[report]'."
        ) from None
    return vl_convert
