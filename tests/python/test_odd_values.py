"""What looks like text, a number or a list, and is none, is refused by the name of its field."""

import numpy as np
import pytest

from kvplan import PlanningConfig, get_kv_cache_configs, plan
from kvplan.specs import FullAttentionSpec, MambaSpec, from_dict

SURROGATE = "\ud800"
SPEC = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16")
CONFIG = PlanningConfig(max_model_len=16)


@pytest.mark.parametrize(
    ("named", "call"),
    [
        ("dtype", lambda: SPEC.replace(dtype=SURROGATE)),
        ("dtypes", lambda: MambaSpec(block_size=16, shapes=((1,),), dtypes=(SURROGATE,))),
        ("kind", lambda: from_dict({"kind": SURROGATE})),
        ("the name of a field", lambda: SPEC.replace(**{SURROGATE: 1})),
        ("the name of a field", lambda: PlanningConfig(**{SURROGATE: 1})),
        ("grouping", lambda: CONFIG.replace(grouping=SURROGATE)),
        ("kv_cache_layout", lambda: CONFIG.replace(kv_cache_layout=SURROGATE)),
        ("device_type", lambda: CONFIG.replace(device_type=SURROGATE)),
        ("a layer name", lambda: plan(CONFIG, [{SURROGATE: SPEC}], [1 << 20])),
        ("a layer name", lambda: get_kv_cache_configs(CONFIG, [{SURROGATE: SPEC}], [1 << 20])),
    ],
)
def test_a_lone_surrogate_is_a_value_error_that_names_the_field(named, call) -> None:
    with pytest.raises(ValueError, match=rf"^{named} holds a lone surrogate.*'\\ud800'"):
        call()


@pytest.mark.parametrize("size", [np.array([16]), np.array([[16, 32]])])
def test_an_array_for_a_number_names_the_field(size) -> None:
    with pytest.raises(TypeError, match=r"^block_size must be an integer, got array"):
        SPEC.replace(block_size=size)


def test_a_kind_that_is_no_string_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^kind must be a string, got 5"):
        from_dict({"kind": 5})


@pytest.mark.parametrize("value", [b"\x10\x20", bytearray(b"\x10\x20")])
def test_bytes_are_no_list_of_numbers(value) -> None:
    with pytest.raises(TypeError, match=r"^available_memory must be a list, got byte"):
        plan(CONFIG, [{"a": SPEC}] * 2, value)
    with pytest.raises(TypeError, match=r"^attention_kernel_block_sizes must be a sequence"):
        CONFIG.replace(attention_kernel_block_sizes=value)
    with pytest.raises(TypeError, match=r"^shapes must be a sequence"):
        MambaSpec(block_size=16, shapes=(value,), dtypes=("float32",))
