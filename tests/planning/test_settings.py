"""The user's knobs: what they become, and what is refused before anything is traced."""

from typing import Any

import pytest

from lms.planning.problem import Filters
from lms.planning.settings import Settings, Thresholds, read_settings
from lms.units import MIB


def test_nothing_given_means_choose_for_me() -> None:
    settings = read_settings()
    assert settings == Settings()
    assert (settings.budget, settings.thresholds) == (None, None)


@pytest.mark.parametrize("budget", ["96MiB", 96 * MIB, "100663296"])
def test_a_budget_is_bytes_or_text(budget: int | str) -> None:
    assert read_settings(budget=budget).budget == 96 * MIB


@pytest.mark.parametrize(
    "thresholds",
    [
        {},
        {"swapout_threshold": 20},
        {"swapout_threshold": 20, "swapin_ahead": 3, "swapin_groupby": 0},
    ],
)
def test_thresholds_ask_for_ibm_s_rule(thresholds: dict[str, Any]) -> None:
    settings = read_settings(thresholds=thresholds)
    assert settings.thresholds == Thresholds(**thresholds)
    assert settings.asks_for_a_plan
    assert settings.plans_what_fits is bool(thresholds)


def test_filters_and_serialization_are_taken_as_they_are() -> None:
    settings = read_settings(
        thresholds={
            "serialization": [1, "3:5", "10:"],
            "serialization_by_size": "1MiB",
        },
        filters={"include_scopes": ["encoder"], "exclude_types": ["Relu"]},
    )
    assert settings.thresholds == Thresholds(
        serialization=(1, "3:5", "10:"), serialization_by_size=MIB
    )
    assert settings.filters == Filters(
        include_scopes=("encoder",), exclude_types=("Relu",)
    )


@pytest.mark.parametrize("budget", ["", "lots", "-1GiB", "0", 0, -5, "5 apples", "nan"])
def test_what_is_no_size_is_refused(budget: int | str) -> None:
    with pytest.raises(ValueError, match="`budget` must be"):
        read_settings(budget=budget)


@pytest.mark.parametrize("name", ["swapout_threshold", "swapin_ahead"])
def test_a_budget_together_with_thresholds_is_refused_with_the_reason(
    name: str,
) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must not .* lets lms choose"):
        read_settings(budget="96MiB", thresholds={name: 3})


@pytest.mark.parametrize(
    ("knob", "least"),
    [("swapout_threshold", 1), ("swapin_ahead", 1), ("swapin_groupby", 0)],
)
def test_a_threshold_below_its_least_is_refused(knob: str, least: int) -> None:
    rule = read_settings(thresholds={knob: least}).thresholds
    assert getattr(rule, knob) == least
    with pytest.raises(ValueError, match=f"`{knob}` must be at least {least}, got"):
        read_settings(thresholds={knob: least - 1})


@pytest.mark.parametrize("value", [2.0, "3", True, [1]])
def test_a_threshold_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="`swapin_ahead` must be a whole number"):
        read_settings(thresholds={"swapin_ahead": value})


@pytest.mark.parametrize("thresholds", [20, "lru", [1], {"swapout": 3}])
def test_what_is_no_threshold_is_refused(thresholds: Any) -> None:
    with pytest.raises(TypeError, match="`thresholds` must be"):
        read_settings(thresholds=thresholds)


@pytest.mark.parametrize("mode", [4, -1, "always", True])
def test_an_unknown_sync_mode_is_refused(mode: Any) -> None:
    with pytest.raises(ValueError, match="`sync_mode` must be one of"):
        read_settings(thresholds={"sync_mode": mode})


@pytest.mark.parametrize("scopes", ["encoder", ["encoder", 3]])
def test_scopes_are_a_list_of_names(scopes: Any) -> None:
    with pytest.raises(TypeError, match="`include_scopes` must be a list of names"):
        read_settings(filters={"include_scopes": scopes})


@pytest.mark.parametrize("filters", [["encoder"], {"scopes": ["encoder"]}])
def test_filters_are_a_mapping_of_known_names(filters: Any) -> None:
    with pytest.raises(
        TypeError, match="`filters` must be a mapping of include_scopes"
    ):
        read_settings(filters=filters)


def test_a_filter_given_as_a_knob_is_told_where_it_belongs() -> None:
    with pytest.raises(TypeError, match=r"Write filters=\{'exclude_types': ...\}"):
        read_settings(exclude_types=["Relu"])  # pyright: ignore[reportCallIssue]


def test_an_unknown_knob_is_refused() -> None:
    with pytest.raises(TypeError, match="swap_branches"):
        read_settings(swap_branches=["x"])  # type: ignore[call-arg]


@pytest.mark.parametrize("recompute", [True, False, None])
def test_making_again_may_be_asked_for_or_not(recompute: Any) -> None:
    assert read_settings(budget="1GiB", recompute=recompute).recompute is recompute


def test_making_again_is_a_yes_or_a_no() -> None:
    with pytest.raises(TypeError, match="must be True, False or None"):
        read_settings(recompute=1)  # type: ignore[arg-type]


def test_ibm_s_rule_recomputes_nothing() -> None:
    with pytest.raises(ValueError, match="`recompute` must not be given together"):
        read_settings(recompute=True, thresholds={})


def test_a_search_while_training_is_a_yes_or_a_no() -> None:
    assert read_settings().replan
    assert not read_settings(replan=False).replan
    knobs: dict[str, Any] = {"replan": None}
    with pytest.raises(TypeError, match="`replan` must be True or False, got None"):
        read_settings(**knobs)
