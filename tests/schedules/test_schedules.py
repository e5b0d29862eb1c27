"""Schedules as state machines: driven by made-up reports, without any fit."""

import json
import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax.criteria import (
    Decision,
    SitePosteriors,
    largest_delta_f_first,
    smallest_magnitude_first,
    smallest_snr_first,
)
from bmrjax.reduction import Normal
from bmrjax.schedules import (
    Action,
    Every,
    Iterative,
    Reduce,
    Regrow,
    Report,
    Restore,
    Stop,
    Train,
    Verified,
    WhenConverged,
)


@dataclass(frozen=True)
class Seen:
    """What an action does, in the words of these tests."""

    action: Action

    @property
    def inner(self):
        return self.action.then if isinstance(self.action, Restore) else self.action

    @property
    def vfe(self):
        return self.action.vfe

    @property
    def by(self):
        by = getattr(self.inner, "by", "criterion")
        return "criterion" if self.search or self.tentative else by

    restore = property(lambda self: isinstance(self.action, Restore))
    reduce = property(lambda self: isinstance(self.inner, Reduce))
    search = property(lambda self: self.reduce and self.inner.by == "search")
    tentative = property(lambda self: self.reduce and self.inner.by == "beyond")
    regrow = property(lambda self: isinstance(self.inner, Regrow))
    stop = property(lambda self: isinstance(self.inner, Stop))
    fraction = property(lambda self: getattr(self.inner, "fraction", 1.0))
    rate = property(lambda self: getattr(self.inner, "rate", 1.0))


class Bench:
    """Drive a schedule: each reduction removes what `removals` says, each measure is scripted."""

    def __init__(self, schedule, num_epochs, *, vfes=(), removals=(), losses=None, costs=None):
        self.schedule, self.num_epochs = schedule, num_epochs
        self.vfes, self.removals = iter(vfes), iter(removals)
        self.all_losses, self.costs = losses, costs
        self.removed, self.actions = None, []

    def run(self):
        memory, epoch = self.schedule.init(), -1
        again = False
        while again or epoch + 1 < self.num_epochs:
            epoch += not again
            losses = [0.0] * epoch if self.all_losses is None else self.all_losses[:epoch]
            report = Report(
                epoch,
                self.num_epochs,
                losses,
                self.removed,
                lambda *limits: next(self.vfes),
                0.0 if self.costs is None else self.costs[epoch],
            )
            before = json.dumps(memory)
            action, after = self.schedule(report, memory)
            assert json.dumps(memory) == before  # the old memory may still be needed
            memory = json.loads(json.dumps(after))  # what a resumed run gets
            assert memory == after
            action = Seen(action)
            self.actions.append(action)
            if action.reduce:
                self.removed = next(self.removals, 1)
            if action.stop:
                break
            again = action.search or action.tentative or action.by != "criterion"
            again = again and not self.removed
        return self.actions

    def epochs(self, name):
        return [epoch for epoch, action in enumerate(self.actions) if getattr(action, name)]


# --- Every --------------------------------------------------------------------------------


def test_the_published_schedule_reduces_before_every_epoch_but_the_first():
    bench = Bench(Every(), 5)
    actions = bench.run()
    assert bench.epochs("reduce") == [1, 2, 3, 4]
    assert {(a.fraction, a.rate, a.restore, a.stop) for a in actions} == {(1.0, 1.0, False, False)}


def test_every_with_wait_interval_cap_and_cooldown():
    bench = Bench(Every(every=3, wait=4, fraction=0.25, cooldown=3), 14)
    actions = bench.run()
    assert bench.epochs("reduce") == [4, 7, 10]
    assert {a.fraction for a in actions if a.reduce} == {0.25}
    assert [a.rate for a in actions] == [1.0] * 11 + [0.75, 0.5, 0.25]


# --- WhenConverged ------------------------------------------------------------------------


def test_it_waits_until_the_loss_is_flat():
    losses = [100.0, 50.0, 25.0, 12.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0]
    bench = Bench(WhenConverged(window=2), len(losses), losses=losses)
    bench.run()
    # Windows (10, 10) and (10, 10) first meet before epoch 8; then four more epochs are needed.
    assert bench.epochs("reduce") == [8]


def test_convergence_is_relative_to_a_negative_loss_too():
    losses = [-100.0, -100.0, -100.5, -100.5, -200.0]
    assert Bench(WhenConverged(window=2), 5, losses=losses).run()[4].reduce
    losses = [-100.0, -100.0, -102.0, -102.0, -200.0]
    assert not Bench(WhenConverged(window=2), 5, losses=losses).run()[4].reduce


def test_it_stops_when_nothing_was_removed():
    bench = Bench(WhenConverged(window=1), 20, losses=[1.0] * 20, removals=[3, 0])
    bench.run()
    assert bench.epochs("reduce") == [2, 4]
    assert bench.epochs("stop") == [5]


def test_with_a_cooldown_it_goes_on_to_the_end():
    schedule = WhenConverged(window=1, cooldown=2)
    bench = Bench(schedule, 8, losses=[1.0] * 8, removals=[0, 0, 0, 0])
    actions = bench.run()
    assert len(actions) == 8
    assert not bench.epochs("stop")
    assert [a.rate for a in actions[-2:]] == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert max(bench.epochs("reduce")) < 6


# --- Verified -----------------------------------------------------------------------------


def test_accepted_rounds_go_on_from_the_better_state():
    schedule = Verified(wait=2, refit=3, cooldown=0)
    bench = Bench(schedule, 9, vfes=[10.0, 9.0, 8.0])
    actions = bench.run()
    assert bench.epochs("reduce") == [2, 5, 8]
    assert [actions[i].vfe for i in (2, 5, 8)] == [10.0, 9.0, 8.0]
    assert {actions[i].fraction for i in (2, 5, 8)} == {0.5}
    assert not bench.epochs("restore")


def test_a_rejected_round_is_taken_back_and_halved():
    # Reference 10; 11 is rejected, so is 10.5; 9.9 is accepted and becomes the reference.
    schedule = Verified(wait=1, refit=2, fraction=0.8, cooldown=0)
    bench = Bench(schedule, 9, vfes=[10.0, 11.0, 10.5, 9.9, 9.95])
    actions = bench.run()
    assert bench.epochs("reduce") == [1, 3, 5, 7]
    assert bench.epochs("restore") == [3, 5]
    assert [actions[i].fraction for i in (1, 3, 5, 7)] == [0.8, 0.4, 0.2, 0.2]
    # Only states that are kept get onto the path.
    assert [a.vfe for a in actions if a.vfe is not None] == [10.0, 9.9]


def test_a_round_is_judged_against_the_last_one_that_was_kept():
    schedule = Verified(wait=0, refit=1, cooldown=0)
    bench = Bench(schedule, 3, vfes=[10.0, 9.0, 9.5])
    bench.run()
    assert bench.epochs("restore") == [2]


def test_an_equal_vfe_is_accepted_and_one_that_is_not_finite_is_not():
    schedule = Verified(wait=0, refit=1, cooldown=0)
    bench = Bench(schedule, 4, vfes=[10.0, 10.0, math.nan, math.inf])
    bench.run()
    assert bench.epochs("restore") == [2, 3]


def test_with_a_mask_prior_a_round_may_cost_less_than_its_masks_gain():
    # From dense the masks cost more and the VFE falls: taken. Then the VFE rises by less than the
    # masks gain: taken. Then by more: not.
    schedule = Verified(wait=0, refit=1, cooldown=0, mask_prior=True)
    vfes, costs = [100.0, 50.0, 53.0, 60.0], [0.0, 40.0, 36.0, 30.0]
    bench = Bench(schedule, 4, vfes=vfes, costs=costs)
    bench.run()
    assert bench.epochs("restore") == [3]
    without = Bench(Verified(wait=0, refit=1, cooldown=0), 3, vfes=vfes[:3])
    without.run()
    assert without.epochs("restore") == [2]


def test_it_stops_when_the_cap_is_spent():
    cap = {"fraction": 0.4, "min_fraction": 0.1}
    schedule = Verified(wait=0, refit=1, cooldown=0, passes=("criterion",), **cap)
    bench = Bench(schedule, 50, vfes=[1.0] + [2.0] * 9)
    actions = bench.run()
    assert [a.fraction for a in actions if a.reduce] == [0.4, 0.2, 0.1]
    assert actions[-1].restore
    assert actions[-1].stop
    assert not actions[-1].reduce


def test_with_a_cooldown_a_spent_cap_trains_to_the_end():
    cap = {"fraction": 0.4, "min_fraction": 0.3}
    schedule = Verified(wait=0, refit=1, cooldown=2, passes=("criterion",), **cap)
    bench = Bench(schedule, 8, vfes=[1.0, 2.0])
    actions = bench.run()
    assert bench.epochs("reduce") == [0]
    assert bench.epochs("restore") == [1]
    assert not bench.epochs("stop")
    assert [a.rate for a in actions] == [1.0] * 6 + [pytest.approx(2 / 3), pytest.approx(1 / 3)]


def test_a_run_may_stop_early_after_a_cooldown_once_the_loss_has_settled():
    cap = {"fraction": 0.4, "min_fraction": 0.3}
    schedule = Verified(wait=0, refit=1, cooldown=2, passes=("criterion",), stop_early=True, **cap)
    bench = Bench(schedule, 20, vfes=[1.0, 2.0])
    actions = bench.run()
    assert bench.epochs("restore") == [1]
    # Six epochs are needed to tell.
    assert bench.epochs("stop") == [8]
    rates = [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert [a.rate for a in actions[:8]] == [1.0] * 6 + rates

    # Losses that still fall hold the end back.
    losses = [100.0 - 10.0 * epoch for epoch in range(8)] + [20.0] * 12
    bench = Bench(schedule, 20, vfes=[1.0, 2.0], losses=losses)
    actions = bench.run()
    (stop,) = bench.epochs("stop")
    assert 12 <= stop < 18
    assert [a.rate for a in actions[stop - 3 : stop]] == [1.0, *rates]

    # Where no epochs are left to stop before, the run ends as it would have.
    bench = Bench(schedule, 4, vfes=[1.0, 2.0], losses=[100.0, 50.0, 20.0, 0.0])
    assert len(bench.run()) == 4


@pytest.mark.parametrize(("vfe", "restored"), [(9.0, []), (11.0, [4])])
def test_the_cooldown_judges_the_round_that_is_pending(vfe, restored):
    schedule = Verified(wait=3, refit=5, cooldown=2)
    bench = Bench(schedule, 6, vfes=[10.0, vfe])
    actions = bench.run()
    assert bench.epochs("reduce") == [3]
    assert bench.epochs("restore") == restored
    assert [a.vfe for a in actions if a.vfe is not None] == ([10.0] if restored else [10.0, 9.0])


def test_it_is_over_when_nothing_is_left_to_remove():
    schedule = Verified(wait=1, refit=3, cooldown=0, passes=("criterion",))
    bench = Bench(schedule, 20, vfes=[5.0, 4.0], removals=[7, 0])
    bench.run()
    assert bench.epochs("reduce") == [1, 4]
    assert bench.epochs("stop") == [5]


def test_as_long_as_nothing_was_ever_proposed_it_asks_again():
    schedule = Verified(wait=2, refit=3, cooldown=4, passes=("criterion",))
    bench = Bench(schedule, 20, vfes=[9.0, 8.0, 7.0, 6.0], removals=[0, 0, 5, 0])
    actions = bench.run()
    assert bench.epochs("reduce") == [2, 5, 8, 11]
    assert not bench.epochs("restore")
    assert [a.vfe for a in actions if a.vfe is not None] == [9.0, 8.0, 7.0, 6.0]

    bench = Bench(Verified(wait=3, refit=5, cooldown=2), 10, vfes=[3.0, 2.0], removals=[0])
    actions = bench.run()
    assert bench.epochs("reduce") == [3]
    assert [epoch for epoch, a in enumerate(actions) if a.vfe is not None] == [3, 8]

    schedule = Verified(wait=1, refit=1, cooldown=2, passes=("criterion",))
    bench = Bench(schedule, 6, vfes=[5, 4, 3, 2, 1], removals=[0] * 4)
    bench.run()
    assert bench.epochs("reduce") == [1, 2, 3]


def steps(actions):
    """Return what a schedule does in each of its calls that do something."""
    words = []
    for a in actions:
        does = ["restore"] if a.restore else []
        does += [f"{a.by} {a.fraction:g}"] if a.reduce else []
        does += ["stop"] if a.stop else []
        words += [", ".join(does)] if does else []
    return words


def test_when_nothing_is_proposed_any_more_the_evidence_of_each_element_and_then_single_ones_decide():
    schedule = Verified(wait=0, refit=1, cooldown=0)
    # Criterion 7, then nothing; evidence 3, then nothing; one element is removed, the next one is not.
    vfes, removals = [9.0, 8.0, 7.5, 7.0, 6.0, 6.5], [7, 0, 3, 0, 1, 1]
    bench = Bench(schedule, 20, vfes=vfes, removals=removals)
    assert steps(bench.run()) == [
        *["criterion 0.5"] * 2,
        *["evidence 0.5"] * 2,
        *["single 0.5"] * 2,
        "restore, stop",
    ]
    # Every state that was kept is on the path, once.
    assert [a.vfe for a in bench.actions if a.vfe is not None] == [9.0, 8.0, 7.0, 6.0]


def test_the_last_pass_follows_when_the_cap_is_spent_and_has_a_cap_of_its_own():
    schedule = Verified(wait=0, refit=1, cooldown=0, min_fraction=0.2)
    bench = Bench(schedule, 20, vfes=[9.0] + [10.0] * 9)
    assert steps(bench.run()) == [
        "criterion 0.5",
        "restore, criterion 0.25",
        "restore, evidence 0.5",
        "restore, evidence 0.25",
        "restore, single 0.5",
        "restore, stop",
    ]


def test_the_passes_come_in_the_order_that_is_asked_for():
    passes = ("evidence", "criterion", "single")
    schedule = Verified(wait=0, refit=1, cooldown=0, passes=passes)
    bench = Bench(schedule, 20, vfes=[9.0, 8.0, 7.0, 6.0, 5.0], removals=[3, 0, 2, 0, 1, 0])
    assert steps(bench.run()) == [
        *["evidence 0.5"] * 2,
        *["criterion 0.5"] * 2,
        *["single 0.5"] * 2,
        "stop",
    ]
    for passes in ((), ("single", "single"), ("evidence", "snr")):
        with pytest.raises(ValueError, match="passes must be some of 'criterion', 'evidence', 's"):
            Verified(passes=passes)


def test_a_round_may_end_within_a_tolerance_of_the_lowest_vfe_so_far():
    schedule = Verified(
        wait=0, refit=1, cooldown=0, passes=("criterion",), min_fraction=0.3, tolerance=1.0
    )
    # The third round is within a nat of the second, and the fourth of the third only.
    bench = Bench(schedule, 20, vfes=[9.0, 8.0, 8.9, 9.8])
    assert steps(bench.run()) == ["criterion 0.5"] * 3 + ["restore, stop"]
    assert [a.vfe for a in bench.actions if a.vfe is not None] == [9.0, 8.0, 8.9]
    with pytest.raises(ValueError, match="tolerance must not be negative, got -1"):
        Verified(tolerance=-1)


def test_without_anything_to_remove_the_last_pass_takes_no_epoch():
    schedule = Verified(wait=0, refit=1, cooldown=0)
    bench = Bench(schedule, 20, vfes=[9.0, 8.0, 7.0], removals=[7, 0, 0, 0])
    assert steps(bench.run()) == ["criterion 0.5"] * 2 + ["evidence 0.5", "single 0.5", "stop"]
    assert len(bench.actions) == 5  # of three epochs


def test_a_criterion_that_never_proposes_anything_leaves_half_of_the_run_to_the_last_pass():
    schedule = Verified(wait=1, refit=2, cooldown=2)
    bench = Bench(schedule, 12, vfes=[9.0] * 9, removals=[0, 0, 0, 2])
    bench.run()
    assert [a.by for a in bench.actions if a.reduce][:4] == ["criterion"] * 3 + ["evidence"]
    assert bench.epochs("reduce")[3] == 6


def test_a_short_run_in_which_nothing_can_go_trains_to_its_end():
    """With an epoch between rounds, a last pass that removes nothing must not be asked for again at once."""
    schedule = Verified(wait=1, refit=1, cooldown=2)
    bench = Bench(schedule, 10, vfes=range(100, 0, -1), removals=[0] * 60)
    actions = bench.run()
    assert len(actions) < 60
    assert sum(not a.reduce for a in actions) >= 5  # epochs without a round


def test_the_cooldown_ends_the_last_pass():
    schedule = Verified(wait=0, refit=1, cooldown=3)
    bench = Bench(schedule, 6, vfes=[9.0, 8.0, 8.0, 10.0], removals=[2, 0, 1])
    assert steps(bench.run()) == ["criterion 0.5"] * 2 + ["evidence 0.5", "restore"]


def test_the_first_round_waits_for_a_loss_that_still_falls_but_not_past_half_of_the_run():
    flat, falling = [10.0] * 40, [100.0 - i for i in range(40)]
    late = [100.0 - 5 * i for i in range(12)] + [45.0] * 28
    for losses, first in ((flat, 8), (falling, 20), (late, 16)):
        bench = Bench(Verified(), 40, vfes=[1.0] * 99, losses=losses)
        bench.run()
        assert bench.epochs("reduce")[0] == first
    given = Bench(Verified(wait=8), 40, vfes=[1.0] * 99, losses=falling)
    given.run()
    assert given.epochs("reduce")[0] == 8


def test_lengths_follow_the_run():
    assert Verified().lengths(100) == (20, 4, 20)
    assert Verified().lengths(1000) == (20, 4, 20)
    assert Verified().lengths(10) == (2, 1, 2)
    assert Verified(wait=0, refit=7, cooldown=0).lengths(10) == (0, 7, 0)


# --- Iterative ----------------------------------------------------------------------------


def in_words(actions):
    """Return a word an action: what it does, and with which fraction or rate."""
    words = []
    for a in actions:
        does = [n for n in ("restore", "search", "regrow", "stop") if getattr(a, n)]
        does += [f"remove {a.fraction:g}"] if a.tentative else []
        does += ["reduce"] if a.reduce and not (a.search or a.tentative) else []
        words.append(", ".join(does) or f"train {a.rate:g}")
    return words


def test_each_training_has_an_epoch_a_rate_and_ends_in_a_reduction():
    schedule = Iterative(rates=(1.0, 0.1), fraction=0.0)
    # The VFE is also measured halfway through each training.
    bench = Bench(schedule, 20, vfes=[9.5, 9.0, 7.5, 7.0, 6.5, 6.0], removals=[5, 2, 0])
    again = ["search", "train 0.1"]
    assert in_words(bench.run()) == ["train 1", "train 0.1", *again, *again, "search", "stop"]
    assert [action.vfe for action in bench.actions if action.vfe] == [9.0, 7.0, 6.0]
    assert all(action.rate == 1.0 for action in bench.actions if action.reduce)


def test_rounds_beyond_the_proposal_stay_if_the_vfe_fell():
    schedule = Iterative(rates=(1.0,), fraction=0.5, min_fraction=0.25)
    vfes = [9.0, 8.0, 8.0, 8.5, 7.0, math.nan]
    bench = Bench(schedule, 20, vfes=vfes, removals=[0, *[3] * 9])
    assert in_words(bench.run()) == [
        "train 1",
        "search",  # 9.0: nothing is removed
        "remove 0.5",
        "remove 0.5",  # 8.0: lower, so again
        "restore, remove 0.25",  # 8.0 once more is not lower
        "restore, stop",  # 8.5
    ]
    schedule = Iterative(rates=(1.0,), fraction=0.5, min_fraction=0.25, search=False)
    bench = Bench(schedule, 20, vfes=[9.0, 8.0, 7.0, math.nan, 9.0], removals=[2, 0, *[3] * 9])
    assert in_words(bench.run()) == [
        "train 1",
        "reduce",
        "reduce",  # removes nothing
        "remove 0.5",  # from 7.0 on
        "restore, remove 0.25",
        "restore, stop",
    ]


@pytest.mark.parametrize("regrowths", [0, 1])
def test_where_nothing_can_go_beyond_the_proposal_nothing_is_trained_for_it(regrowths):
    schedule = Iterative(rates=(1.0,), regrowths=regrowths)
    bench = Bench(schedule, 20, vfes=[9.0, 9.5], removals=[0, 0, 3])
    end = ["restore, regrow", "reduce", "restore, stop"] if regrowths else ["restore, stop"]
    assert in_words(bench.run()) == ["train 1", "search", "remove 0.8", *end]


def test_a_hopeless_round_is_not_trained_to_its_end():
    schedule = Iterative(fraction=0.5, min_fraction=0.2)
    # The second rate brought 0.5 nats: it may make good 0.4, and then brings 1.0, but not 1.0.
    vfes = [9.5, 9.0, 9.4, 8.4, 9.4, 9.3, 9.0]
    bench = Bench(schedule, 20, vfes=vfes, removals=[0, *[3] * 9])
    assert in_words(bench.run()) == [
        "train 1", "train 0.1", "search", "remove 0.5", "train 0.1", "remove 0.5",
        "restore, remove 0.25", "train 0.1", "restore, stop",
    ]  # fmt: skip


@pytest.mark.parametrize(("again", "taken_back"), [(5.0, False), (7.0, True), (math.nan, True)])
def test_what_grew_back_stays_if_the_vfe_fell(again, taken_back):
    schedule = Iterative(rates=(1.0,), fraction=0.0, regrowths=1)
    vfes, removals = [9.0, 6.0, again, 4.0], [5, 0, 3, 0]
    actions = Bench(schedule, 20, vfes=vfes, removals=removals).run()
    expected = ["train 1", "search", "search", "regrow", "reduce"]
    assert in_words(actions) == [
        *expected, *(["restore, stop"] if taken_back else ["search", "stop"]),
    ]  # fmt: skip


def test_after_the_last_round_beyond_all_may_come_back():
    schedule = Iterative(rates=(1.0,), fraction=0.5, min_fraction=0.5, regrowths=1)
    vfes, removals = [9.0, 9.5, 8.0, 8.5], [0, 3, 2, 0, 3]
    assert in_words(Bench(schedule, 20, vfes=vfes, removals=removals).run()) == [
        "train 1", "search", "remove 0.5", "restore, regrow", "reduce",
        "search", "remove 0.5", "restore, stop",
    ]  # fmt: skip


# --- settings and orders ------------------------------------------------------------------

WRONG = [
    (Every, {"every": 0}, "Every: every must be at least 1, got 0"),
    (Every, {"wait": -1}, "Every: wait must be at least 0"),
    (Every, {"fraction": 0.0}, r"fraction must be in \(0, 1\], got 0.0"),
    (WhenConverged, {"window": 0}, "WhenConverged: window must be at least 1"),
    (WhenConverged, {"cooldown": -1}, "cooldown must be at least 0"),
    (WhenConverged, {"fraction": 1.5}, r"fraction must be in \(0, 1\]"),
    (Verified, {"refit": 0}, "Verified: refit must be at least 1"),
    (Verified, {"wait": -1}, "wait must be at least 0"),
    (Iterative, {"rates": ()}, "Iterative: rates must be positive"),
    (Iterative, {"regrowths": -1}, "Iterative: regrowths must be at least 0"),
    (Iterative, {"fraction": 1.5}, "Iterative: fraction must be in \\[0, 1\\], got 1.5"),
    (Iterative, {"min_fraction": 0.0}, "Iterative: min_fraction must be in \\(0, 1\\]"),
    (Verified, {"min_fraction": 0.0}, r"min_fraction must be in \(0, 1\]"),
]


@pytest.mark.parametrize(("schedule", "settings", "message"), WRONG)
def test_settings_are_checked(schedule, settings, message):
    with pytest.raises(ValueError, match=message):
        schedule(**settings)


def test_orders():
    loc, scale = jnp.array([0.1, -0.2, 3.0]), jnp.array([0.01, 0.4, 0.1])
    posterior = {"w": Normal(loc, scale)}
    delta_f = {"w": jnp.array([4.0, 1.0, -500.0])}
    decision = Decision({"w": jnp.ones(3, bool)}, delta_f, None)
    expected = {
        smallest_snr_first: [1, 0, 2],
        smallest_magnitude_first: [0, 1, 2],
        largest_delta_f_first: [0, 1, 2],
    }
    for order, ranking in expected.items():
        scores = order(SitePosteriors(posterior, {}), decision)["w"]
        assert np.argsort(scores).tolist() == ranking
        assert bool(jnp.all(jnp.isfinite(scores) & (scores >= 0)))


# --- actions ------------------------------------------------------------------------------


def test_actions_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="a search compares measured VFEs"):
        Reduce(by="search")
    with pytest.raises(ValueError, match=r"give the VFE as Restore\(vfe=...\)"):
        Restore(then=Train(vfe=1.0))
