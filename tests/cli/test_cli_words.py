"""What the commands say while one waits, and of what a run reached."""

import io
import sys

import pytest
from saved_document import DOCUMENT

from bmrjax import cli
from bmrjax.cli.chosen_point import chosen_as, kept_by_the_fit
from bmrjax.cli.run_html_report import _chosen, _remarks, _title, of_temperatures
from bmrjax.cli.run_report import summary_of
from bmrjax.cli.sparsify_options import SparsifyOptions
from bmrjax.cli.underfits import underfit_findings
from bmrjax.cli.waiting import saying


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_each_thing_that_is_done_takes_the_place_of_the_one_before(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with saying() as say:
        say("loading the run")
        say("writing")
    first, second = "bmrjax: loading the run ...", "bmrjax: writing ..."
    gone = [f"\r{' ' * len(text)}\r" for text in (first, second)]
    assert terminal.getvalue() == f"{first}{gone[0]}{second}{gone[1]}"
    with saying(wanted=False) as say:
        say("more")
    monkeypatch.setattr(sys, "stderr", quiet := io.StringIO())
    with saying() as say:
        say("more")
    assert "more" not in terminal.getvalue() + quiet.getvalue()


def point(kept, epoch, **more):
    return {"kept": kept, "total": 50, "epoch": epoch, "metrics": {}, "vfe_per_datum": 1.0, **more}


def document(**more):
    path = [point(50, 3), point(48, 6), point(46, 9), point(20, 12, taken_back=True)]
    return DOCUMENT | {"kept": 48, "total": 50, "path": path, "fit_kept": 46} | more


@pytest.mark.parametrize(
    ("within", "inputs", "reason"),
    [
        (1.0, ["a"], "the sparsest within 1 standard error of the best NLL of 20 validation rows"),
        (
            0.5,
            ["a"],
            "the sparsest within 0.5 standard errors of the best NLL of 20 validation rows",
        ),
        (0.0, ["a"], "that of the best NLL of 20 validation rows"),
        (
            1.0,
            [],
            "one that reads no input, as 20 validation rows do not show that another point is better",
        ),
    ],
)
def test_the_summary_and_the_page_say_why_a_point_was_taken(within, inputs, reason):
    found = document(inputs_kept=inputs, config={**DOCUMENT["config"], "within": within})
    assert f"    chosen as                 {reason}; the fit ended with 46\n" in summary_of(found)
    assert _chosen(found) == f"The point of this result is {reason}. The fit itself ended with 46."


def test_nothing_is_said_of_a_choice_that_was_not_made():
    plain = {**DOCUMENT["config"], "validation": 0.0}
    for found in (document(config=plain), document(total=0), document(path=[])):
        assert chosen_as(found) == ""
        assert _chosen(found) == ""
    assert "chosen as" not in summary_of(document(config=plain))
    older = {name: value for name, value in document().items() if name != "validation_rows"}
    assert chosen_as(older).endswith("of the validation rows")
    assert kept_by_the_fit(document(kept=46)) is None


def test_an_accuracy_comes_with_its_rows_and_its_error():
    found = document(accuracy=23 / 30, rmse=None, rmse_by_target=None, num_classes=2)
    assert "  accuracy                    0.7667 ± 0.077 on 30 test rows\n" in summary_of(found)
    assert _remarks(found) == {"accuracy": "of 30 rows, ± 7.7 points"}
    assert "  accuracy                    1 on 30 test rows\n" in summary_of(
        found | {"accuracy": 1.0}
    )
    del found["test_rows"]
    assert "  accuracy                    0.7667\n" in summary_of(found)
    assert _remarks(found) == {}
    assert _remarks(document()) == {"rmse": "1 in the unit of y"}


def test_a_page_is_called_by_its_target(tmp_path):
    options = SparsifyOptions(data="d.csv", out=tmp_path)
    assert _title(options, document()) == "y: regression, a perceptron"
    images = SparsifyOptions(data="digits", out=tmp_path, net="vit")
    found = document(target_names=None, num_classes=10)
    assert _title(images, found) == "digits: 10 classes, a vision transformer"


def test_a_fit_that_learned_less_than_a_point_estimate_says_so():
    """A constant came with the word that this is right for pure noise, beside an NLL that was far better."""
    fit = {"temperature": 1.0, "nll": 1.474, "kept": 0}
    compared = {"point_estimate_nll": -0.191, "fits": [fit], "taken": 0, "underfits": True}
    found = document(temperatures=compared, inputs_kept=[])
    (finding,) = underfit_findings(found)
    assert finding["code"] == "underfits"
    assert "predicts the validation rows better: NLL -0.191 for 1.47." in finding["message"]
    assert "not pure noise, although this fit reads no input" in finding["message"]
    assert finding["message"] in of_temperatures(found)[-1]
    (finding,) = underfit_findings(found | {"inputs_kept": ["a"]})
    assert "noise" not in finding["message"]
    assert underfit_findings(document(temperatures=compared | {"underfits": False})) == []
    assert underfit_findings(document()) == []


def test_the_page_compares_one_fit_with_a_point_estimate():
    fit = {"temperature": 1.0, "nll": 0.25, "kept": 48, "seconds": 1.0}
    compared = {"point_estimate_nll": 0.5, "fits": [fit], "taken": 0}
    (note,) = of_temperatures(document(temperatures=compared))
    assert note.endswith("0.25 by this fit, 0.5 by a point estimate.")
    assert of_temperatures(document()) == []


def test_a_command_that_is_nearly_one_is_named(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["sparsfy", "--data", "digits"])
    assert (
        capsys.readouterr().err
        == "bmrjax: error: there is no command 'sparsfy'. Did you mean bmrjax sparsify?\n"
    )
    with pytest.raises(SystemExit, match="2"):
        cli.main(["xyz"])
    assert "Did you mean" not in capsys.readouterr().err
