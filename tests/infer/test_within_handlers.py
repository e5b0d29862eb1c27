"""What handlers are around, and what gets the arguments."""

import numpyro
import pytest
from numpyro.infer.autoguide import AutoNormal

import bmrjax as bmr
from bmrjax.infer.init import auto_guides
from bmrjax.infer.within_handlers import called_program, within_handlers
from bmrjax.run.result_inputs import _in_the_other_form
from bmrjax.run.settings import check_program_kind


def program(x): ...


class Renames(numpyro.handlers.block):
    def __call__(self, z):
        return self.fn(x=z)


SEEDED = numpyro.handlers.seed(program, 0)
OWN = Renames(SEEDED)


@pytest.mark.parametrize(
    ("given", "inside", "called"),
    [
        (program, [program], program),
        (numpyro.handlers.block(), [None], None),
        (SEEDED, [program], program),
        (bmr.prune(SEEDED, {}), [SEEDED, program], program),
        # One that takes its own arguments is what gets them.
        (bmr.prune(OWN, {}), [OWN, SEEDED, program], OWN),
    ],
)
def test_what_is_within_and_what_is_called(given, inside, called):
    found = list(within_handlers(given))
    assert found == (
        [given, *inside] if isinstance(given, numpyro.primitives.Messenger) else inside
    )
    assert called_program(given) is called


def test_a_seed_and_a_guide_are_found_at_any_depth():
    with pytest.raises(TypeError, match="the program is within numpyro.handlers.seed"):
        check_program_kind(bmr.prune(OWN, {}))
    guide = AutoNormal(program)
    assert auto_guides(numpyro.handlers.block(Renames(guide))) == [guide]


@pytest.mark.parametrize(
    ("called", "expected"), [(SEEDED, ({"0"}, ["x"])), (Renames(program), (set(), ["z"]))]
)
def test_rows_are_found_by_the_names_of_what_gets_the_arguments(called, expected):
    assert _in_the_other_form({"x"}, called) == expected
