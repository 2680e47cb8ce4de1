"""Sampling parameters: what is refused, and how it is said."""

from __future__ import annotations

from typing import Any

import pytest

from omniflow_backend.compute.generation import SamplingParameters
from omniflow_backend.errors import BadInput


def test_defaults_are_greedy() -> None:
    assert SamplingParameters.from_mapping(None).greedy
    assert SamplingParameters.from_mapping({}) == SamplingParameters()


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [
        ("temprature", "temperature"),
        ("max_new_tokens", "max_tokens"),
        ("stop_tokens", "stop_token_ids"),
        ("topk", "top_k"),
    ],
)
def test_an_unknown_option_is_named_with_the_nearest_known_one(unknown: str, nearest: str) -> None:
    with pytest.raises(BadInput, match=f"{unknown}.*{nearest}"):
        SamplingParameters.from_mapping({unknown: 1})


def test_an_option_like_no_other_gets_the_list() -> None:
    with pytest.raises(BadInput, match=r"'zzz'; known are temperature, top_p"):
        SamplingParameters.from_mapping({"zzz": 1})


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("temperature", -0.1, r"\[0, 100\]"),
        ("temperature", float("nan"), r"\[0, 100\]"),
        ("top_p", 0, r"\(0, 1\]"),
        ("top_p", 1.5, r"\(0, 1\]"),
        ("min_p", 2, r"\[0, 1\]"),
        ("top_k", 0, "at least 1"),
        ("top_k", -2, r"\[-1, "),
        ("repetition_penalty", 0, r"\(0, 2\]"),
        ("presence_penalty", 3, r"\[-2, 2\]"),
        ("frequency_penalty", -3, r"\[-2, 2\]"),
        ("max_tokens", 0, r"\[1, "),
        ("logprobs", 21, r"\[0, 20\]"),
        ("seed", -1, r"\[0, "),
        ("n", 2, r"\[1, 1\]"),
        ("max_tokens", 1.5, "whole number"),
        ("temperature", "hot", "a number"),
        ("temperature", None, "a number"),
        ("max_tokens", True, "whole number"),
        ("ignore_eos", 1, "true or false"),
        ("stop", [1], "non-empty strings"),
        ("stop", "", "non-empty strings"),
        ("stop_token_ids", ["a"], "token ids"),
        ("stop", ["x"] * 33, "at most 32"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_option_and_the_range(option: str, value: Any, told: str) -> None:
    with pytest.raises(BadInput, match=rf"{option}.*{told}"):
        SamplingParameters.from_mapping({option: value})


def test_stops_may_be_one_or_several() -> None:
    assert SamplingParameters.from_mapping({"stop": "x", "stop_token_ids": 5}) == SamplingParameters(
        stop=("x",), stop_token_ids=(5,)
    )
    assert SamplingParameters.from_mapping({"stop": ["x", "y"], "stop_token_ids": None}).stop == ("x", "y")


def test_a_seed_with_min_p_is_refused_unless_greedy() -> None:
    with pytest.raises(BadInput, match=r"seed.*min_p"):
        SamplingParameters(temperature=1.0, seed=1, min_p=0.1)
    assert SamplingParameters(seed=1, min_p=0.1).greedy


def test_parameters_must_be_an_object() -> None:
    with pytest.raises(BadInput, match=r"JSON object, not list"):
        SamplingParameters.from_mapping([])  # type: ignore[arg-type]
