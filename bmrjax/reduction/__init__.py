"""Closed-form evidence differences and reduced posteriors, one posterior family a file.

Pure functions of arrays: nothing here knows NumPyro, networks or training.
"""

from bmrjax.reduction.conjugate import Beta as Beta
from bmrjax.reduction.conjugate import Categorical as Categorical
from bmrjax.reduction.conjugate import Dirichlet as Dirichlet
from bmrjax.reduction.conjugate import Gamma as Gamma
from bmrjax.reduction.conjugate import beta as beta
from bmrjax.reduction.conjugate import categorical as categorical
from bmrjax.reduction.conjugate import dirichlet as dirichlet
from bmrjax.reduction.conjugate import gamma as gamma
from bmrjax.reduction.improper import ImproperLogUniform as ImproperLogUniform
from bmrjax.reduction.improper import dropout_rate as dropout_rate
from bmrjax.reduction.improper import log_uniform_divergence as log_uniform_divergence
from bmrjax.reduction.laplace import Laplace as Laplace
from bmrjax.reduction.laplace import laplace as laplace
from bmrjax.reduction.laplace import laplace_divergence as laplace_divergence
from bmrjax.reduction.log_normal import LogNormal as LogNormal
from bmrjax.reduction.log_normal import LogUniform as LogUniform
from bmrjax.reduction.log_normal import log_normal as log_normal
from bmrjax.reduction.low_rank_normal import LowRankNormal as LowRankNormal
from bmrjax.reduction.low_rank_normal import low_rank_normal as low_rank_normal
from bmrjax.reduction.matrix_normal import MatrixNormal as MatrixNormal
from bmrjax.reduction.matrix_normal import delta_f_columns as delta_f_columns
from bmrjax.reduction.matrix_normal import delta_f_rows as delta_f_rows
from bmrjax.reduction.matrix_normal import matrix_normal as matrix_normal
from bmrjax.reduction.multivariate_normal import MultivariateNormal as MultivariateNormal
from bmrjax.reduction.multivariate_normal import multivariate_normal as multivariate_normal
from bmrjax.reduction.multivariate_normal import prune_greedily as prune_greedily
from bmrjax.reduction.normal import Normal as Normal
from bmrjax.reduction.normal import delta_f_under as delta_f_under
from bmrjax.reduction.normal import normal as normal
from bmrjax.reduction.normal import spike as spike
from bmrjax.reduction.removal import delta_f_each as delta_f_each
from bmrjax.reduction.removal import remove as remove
from bmrjax.reduction.sparse_dirichlet import SparseDirichlet as SparseDirichlet
from bmrjax.reduction.sparse_dirichlet import sparse_dirichlet as sparse_dirichlet
from bmrjax.reduction.spike_slab import ZeroOrNormal as ZeroOrNormal
