"""A misspelled keyword is named, with the field that it is near."""

import pytest

import kvplan
from kvplan import specs

CONFIG = kvplan.PlanningConfig(max_model_len=9)


@pytest.mark.parametrize("make", [kvplan.PlanningConfig, CONFIG.replace])
def test_of_a_config(make):
    with pytest.raises(TypeError) as caught:
        make(max_groops=3)
    assert str(caught.value) == (
        "PlanningConfig has no field 'max_groops'; did you mean 'max_groups'?"
    )
    with pytest.raises(TypeError) as caught:
        make(zzz=3)
    assert str(caught.value) == "PlanningConfig has no field 'zzz'"


def test_a_misspelled_field_is_named_before_it_is_missed():
    with pytest.raises(TypeError, match="'max_model_length'; did you mean 'max_model_len'"):
        kvplan.PlanningConfig(max_model_length=9)
    with pytest.raises(TypeError, match=r"needs max_model_len \(tokens\)"):
        kvplan.PlanningConfig()


def test_of_a_spec():
    fields = {"block_size": 16, "num_kv_heads": 1, "head_size": 64, "dtype": "bfloat16"}
    with pytest.raises(TypeError) as caught:
        specs.SlidingWindowSpec(**fields, sliding_windw=8)
    assert str(caught.value) == (
        "SlidingWindowSpec has no field 'sliding_windw'; did you mean 'sliding_window'?"
    )
    with pytest.raises(TypeError, match="needs sliding_window"):
        specs.SlidingWindowSpec(**fields)
