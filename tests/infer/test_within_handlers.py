"""What handlers are around, at any depth."""

import numpyro
import pytest
from numpyro.infer.autoguide import AutoNormal

import bmrjax as bmr
from bmrjax.infer.init import auto_guides
from bmrjax.infer.within_handlers import within_handlers
from bmrjax.run.settings import check_program_kind


def program(x): ...


class Renames(numpyro.handlers.block):
    def __call__(self, z):
        return self.fn(x=z)


SEEDED = numpyro.handlers.seed(program, 0)
OWN = Renames(SEEDED)


@pytest.mark.parametrize(
    ("given", "inside"),
    [
        (program, []),
        (numpyro.handlers.block(), [None]),
        (SEEDED, [program]),
        (bmr.prune(SEEDED, {}), [SEEDED, program]),
        (bmr.prune(OWN, {}), [OWN, SEEDED, program]),
    ],
)
def test_what_is_within_handlers(given, inside):
    assert list(within_handlers(given)) == [given, *inside]


def test_a_seed_and_a_guide_are_found_at_any_depth():
    with pytest.raises(TypeError, match="the program is within numpyro.handlers.seed"):
        check_program_kind(bmr.prune(OWN, {}))
    guide = AutoNormal(program)
    assert auto_guides(numpyro.handlers.block(Renames(guide))) == [guide]
