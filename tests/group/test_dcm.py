"""A group study of dynamic causal models in small; the study in the benchmarks has twenty simulations."""

import jax.numpy as jnp
import numpy as np
import pytest

import bmrjax as bmr

dcm = pytest.importorskip(
    "benchmarks.trust.dcm", reason="the benchmarks are not part of this distribution"
)


@pytest.mark.slow
def test_the_connection_that_differs_survives_and_no_other():
    u = dcm.inputs(96)
    y, patient, theta = dcm.simulate(0, u)
    mode, covariance, left = dcm.laplace(jnp.asarray(u), jnp.asarray(y, jnp.float32))
    assert np.max(left) < 1e-3
    loc, spread = dcm.judged(mode, covariance)
    # Laplace's approximation says how far the subjects' parameters are from the truth.
    z = (loc - theta) / np.sqrt(np.einsum("inn->in", spread))
    assert 0.8 < z.std() < 1.25
    study = bmr.peb(
        design={"group": np.where(patient, "patient", "control")},
        loc=loc,
        covariance=spread,
        prior=bmr.reduction.Normal(0.0, dcm.PRIOR_SCALE),
        names=list(dcm.NAMES),
    )
    found = study.reduce(forced=["mean"], expected=1, verify=False)
    chosen = np.array(dcm.NAMES)[found.chosen["group[patient]"]]
    assert chosen.tolist() == [dcm.DIFFERENT]
    assert study.mean["group[patient]"][dcm.NAMES.index(dcm.DIFFERENT)] < -0.1
