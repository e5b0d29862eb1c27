"""The table of inputs on a page counts what `plot.inputs` counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_plot_inputs import ROWS, bars, fitted, plain

import bmrjax as bmr
from bmrjax.run.page_removals import removals_section
from bmrjax.run.path_rounds import removal_of_each
from bmrjax.run.result_page import _leads

NAMES = ("dose", "age", "weight")
FIRST = jnp.array([[True, True, False], [True, True, True]])


def inputs_of(result, batch):
    """Return the counts in the table of inputs, and its caption."""
    leads = _leads(result, batch)
    each = removal_of_each(result, [])
    section = removals_section(result, [], each, [], unit="weights", leads=leads)
    (table,) = [block for block in section.blocks if block.caption.startswith("Inputs")]
    return {row[0]: int(row[1]) for row in table.rows}, table.caption


@pytest.mark.parametrize("of_the_library", [True, False])
def test_weights_into_units_that_nothing_reads_do_not_count(of_the_library):
    last = jnp.array([[True, False]])
    if of_the_library:
        network = bmr.zoo.MLP(3, (2,), 1, key=jax.random.key(0))
        keep = {"net.layers.0.weight": FIRST, "net.layers.1.weight": last}
    else:
        network, keep = plain(), {"net.read": FIRST, "net.write.weight": last}
    result = fitted(network, keep, columns=NAMES)
    counts, caption = inputs_of(result, (ROWS,))
    assert counts == {"dose": 1, "age": 1, "weight": 0}
    assert " that read them and lead to an output." in caption
    _, _, texts = bars(bmr.plot.inputs(result, ROWS))
    drawn = dict(zip(NAMES, texts, strict=True))
    assert {name: int(text) if text != "removed" else 0 for name, text in drawn.items()} == counts


def test_without_a_program_all_kept_weights_count_and_the_caption_does_not_say_more():
    keep = {"net.read": np.asarray(FIRST), "net.write.weight": np.array([[True, False]])}
    counts, caption = inputs_of(bmr.Result({}, keep, {}, 10, columns=NAMES), None)
    assert counts == {"dose": 2, "age": 2, "weight": 1}
    assert "lead to an output" not in caption
