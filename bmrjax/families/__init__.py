"""Families of posteriors, one file each: distribution, divergence, reading, removal, and its form in a guide.

A family is a class of `bmrjax.reduction`, a frozen dataclass of arrays. The library asks about it through
functions that dispatch on that class, or on a NumPyro distribution, with `functools.singledispatch`.

Adding a family
---------------

1. A file in `bmrjax/reduction/` has the class, with `loc` shaped as the site, the properties `magnitude`,
   `snr` and `standard_deviation`, and its evidence differences, registered with `reduction.delta_f_each`; for
   a prior of normal posteriors, with `reduction.delta_f_under`.
2. A file in `bmrjax/families/` registers the answers:

   ====================  ==============================  ================================================
   question              dispatches on                   answer
   ====================  ==============================  ================================================
   `stored`              NumPyro distribution            the family that it is
   `affine`              family                          that of an affine transform
   `location`            family                          location and scale, on the real line
   `facts`               family                          its name, and which criteria read it
   `has_closed_form`     family of a posterior           whether criteria can read it under a prior
   `removed`             family of a posterior           the posterior without some elements
   `shown_elements`      family of a posterior           its NumPyro distribution, for tables
   `default_form`        family of a prior               how `infer.AutoMeanField` writes the posterior
   `kl_divergence`       pair of NumPyro distributions   NumPyro's own dispatch, for the training loss
   ====================  ==============================  ================================================

   Only those that differ from the defaults are needed. A form that a program asks for by name, with
   ``infer={"posterior": name}``, is made known by `offer`.
3. One line in each of the two `__init__` files imports it.

Example:
    Logistic posteriors, read off a distribution of one's own, with their Savage-Dickey ratio.

    >>> from dataclasses import dataclass
    >>> import jax, jax.numpy as jnp, numpyro.distributions as dist
    >>> from bmrjax import families, reduction
    >>> @jax.tree_util.register_dataclass
    ... @dataclass(frozen=True)
    ... class Logistic:
    ...     loc: jax.Array
    ...     scale: jax.Array
    >>> @reduction.delta_f_each.register(Logistic)
    ... def _(posterior, prior):
    ...     q, p = dist.Logistic(posterior.loc, posterior.scale), dist.Logistic(prior.loc, prior.scale)
    ...     return q.log_prob(0.0) - p.log_prob(0.0)
    >>> class Own(dist.Logistic):
    ...     pass
    >>> @families.stored.register(Own)
    ... def _(fn):
    ...     return Logistic(fn.loc, fn.scale)
    >>> @families.has_closed_form.register(Logistic)
    ... def _(posterior, prior):
    ...     return isinstance(prior, Logistic)
    >>> q = families.read(Own(jnp.array([0.1, 4.0]), 0.2).to_event(1))
    >>> p = families.read(Own(0.0, 1.0).expand([2]).to_event(1))
    >>> families.has_closed_form(q, p), [f"{nats:.1f}" for nats in reduction.delta_f_each(q, p)]
    (True, ['1.5', '-17.0'])
"""

from bmrjax.families.base import FamilyFacts as FamilyFacts
from bmrjax.families.base import Shown as Shown
from bmrjax.families.base import affine as affine
from bmrjax.families.base import center as center
from bmrjax.families.base import divergence_of_elements as divergence_of_elements
from bmrjax.families.base import facts as facts
from bmrjax.families.base import facts_of as facts_of
from bmrjax.families.base import has_closed_form as has_closed_form
from bmrjax.families.base import is_removable as is_removable
from bmrjax.families.base import location as location
from bmrjax.families.base import own_density as own_density
from bmrjax.families.base import read as read
from bmrjax.families.base import read_as_stored as read_as_stored
from bmrjax.families.base import removed as removed
from bmrjax.families.base import shown_elements as shown_elements
from bmrjax.families.base import stored as stored
from bmrjax.families.collapsed import CollapsedForm as CollapsedForm
from bmrjax.families.elements import NotElementwiseError as NotElementwiseError
from bmrjax.families.elements import Prunable as Prunable
from bmrjax.families.elements import elementwise as elementwise
from bmrjax.families.gamma import GammaForm as GammaForm
from bmrjax.families.gamma import LogGamma as LogGamma
from bmrjax.families.guide_form import GuideForm as GuideForm
from bmrjax.families.guide_form import GuideSite as GuideSite
from bmrjax.families.guide_form import NormalForm as NormalForm
from bmrjax.families.guide_form import asked_form as asked_form
from bmrjax.families.guide_form import default_form as default_form
from bmrjax.families.guide_form import offer as offer
from bmrjax.families.joint_normal import PrunedJoint as PrunedJoint
from bmrjax.families.joint_normal import marginals as marginals
from bmrjax.families.joint_normal import pruned_joint as pruned_joint
from bmrjax.families.joint_normal import read_joint as read_joint
from bmrjax.families.laplace import LaplaceForm as LaplaceForm
from bmrjax.families.log_normal import TruncatedLogNormal as TruncatedLogNormal
from bmrjax.families.log_normal import TruncatedLogUniform as TruncatedLogUniform
from bmrjax.families.log_uniform import ImproperReciprocal as ImproperReciprocal
from bmrjax.families.matrix_normal import ScaledMatrixNormal as ScaledMatrixNormal
from bmrjax.families.normal import divergence_under as divergence_under
from bmrjax.families.normal import normal_parameters as normal_parameters
from bmrjax.families.normal import stored_normal_parameters as stored_normal_parameters
from bmrjax.families.per_datum import PerDatum as PerDatum
from bmrjax.families.point_mass import PointForm as PointForm
from bmrjax.families.pruned import PrunedElements as PrunedElements
from bmrjax.families.pruned import drawn_once as drawn_once
from bmrjax.families.pruned import pruned as pruned
from bmrjax.families.shared_centers import SharedCenters as SharedCenters
from bmrjax.families.shared_centers import mixture_log_prob as mixture_log_prob
from bmrjax.families.spike_and_slab import DiscreteSpikeAndSlab as DiscreteSpikeAndSlab
from bmrjax.families.spike_and_slab import RelaxedSpikeAndSlab as RelaxedSpikeAndSlab
from bmrjax.families.spike_and_slab import (
    StraightThroughSpikeAndSlab as StraightThroughSpikeAndSlab,
)
from bmrjax.families.spike_and_slab import atoms_are_known as atoms_are_known
from bmrjax.families.spike_and_slab import (
    spike_and_slab_parameters as spike_and_slab_parameters,
)
from bmrjax.families.support import element_support as element_support
from bmrjax.families.support import inside as inside
from bmrjax.families.support import is_real as is_real
