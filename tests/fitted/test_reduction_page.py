import dataclasses
import re

import numpy as np
import pytest

import bmrjax as bmr
from bmrjax.fitted.verification import Verification

NAMES = ["dose", "age <years>", "weight"]


@pytest.fixture(scope="module")
def found():
    covariance = np.array([[0.02, 0.01, 0.0], [0.01, 0.02, 0.0], [0.0, 0.0, 0.03]])
    prior = bmr.reduction.Normal(np.zeros(3), np.full(3, 1.4))
    return bmr.reduce_fit(
        loc=np.array([0.8, 0.1, 0.02]), covariance=covariance, prior=prior, names=NAMES
    )


def test_the_page_has_the_table_by_name(found, tmp_path):
    text = found.report(tmp_path / "page.html", title="A <trial>").read_text()
    assert "A &lt;trial&gt;" in text
    table = found.table()
    for name, prob, gain in zip(NAMES, table["inclusion_prob"], table["delta_f"], strict=True):
        shown = name.replace("<", "&lt;").replace(">", "&gt;")
        row = re.search(rf'<th scope="row">{re.escape(shown)}</th>(.*?)</tr>', text, re.DOTALL)[1]
        assert f"{100 * prob:.1f}%" in row
        assert f"{gain:+.3g}" in row
    assert "reduce_fit(..., verify=True)" in text
    assert len(text) < 1_000_000


def test_measured_evidence_is_drawn_beside_the_predicted(found, tmp_path):
    first = found.models()["delta_f"].to_numpy()[:2]
    check = Verification(first, first - 0.25, np.full(2, 0.01), np.array([0.1, 0.9]))
    measured = dataclasses.replace(found, verification=check, is_measured=True)
    text = measured.report(tmp_path / "page.html").read_text()
    assert "verify=True" not in text
    assert "Measured \\u0394F" in text
    assert f"{first[0] - 0.25:+.3g}" in text
