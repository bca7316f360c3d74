"""Objects that no `__init__` filled, and pickling what cannot be: TypeError at every use."""

import inspect
import pickle

import pytest

from kvplan import BlockPool, PlanningConfig, SlicedBlockPool, _core, plan
from kvplan.specs import FullAttentionSpec

CLASSES = [
    cls
    for _, cls in inspect.getmembers(_core, inspect.isclass)
    if type(cls).__name__ == "pybind11_type"
]


def members(cls: type) -> list[str]:
    return [name for name in vars(cls) if isinstance(vars(cls)[name], property)]


def test_the_classes_are_found() -> None:
    assert {"BlockPool", "Plan", "PlanningConfig", "FullAttentionSpec"} <= {
        cls.__name__ for cls in CLASSES
    }


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_reading_a_member_of_an_unmade_object_is_refused(cls: type) -> None:
    unmade = cls.__new__(cls)
    for name in members(cls):
        with pytest.raises(TypeError, match="without calling its __init__"):
            getattr(unmade, name)


@pytest.mark.parametrize("cls", [c for c in CLASSES if "__repr__" in vars(c)])
def test_printing_an_unmade_object_is_refused(cls: type) -> None:
    with pytest.raises(TypeError, match="without calling its __init__"):
        repr(cls.__new__(cls))


def test_planning_with_unmade_objects_is_refused() -> None:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16")
    with pytest.raises(TypeError, match="without calling its __init__"):
        plan(PlanningConfig.__new__(PlanningConfig), [{"a": spec}], [1 << 20])
    unmade = FullAttentionSpec.__new__(FullAttentionSpec)
    with pytest.raises(TypeError, match="without calling __init__"):
        plan(PlanningConfig(max_model_len=16), [{"a": unmade}], [1 << 20])


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_cannot_be_pickled_says_so(protocol: int) -> None:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16")
    planned = plan(PlanningConfig(max_model_len=16), [{"a": spec}], [1 << 20])
    pools = (BlockPool(9), SlicedBlockPool(9, [2]))
    for value in (planned, planned.groups[0], planned.workers[0], *pools):
        with pytest.raises(TypeError, match=rf"cannot pickle '.*{type(value).__name__}' object"):
            pickle.dumps(value, protocol)
    for value in (spec, planned.config):
        assert pickle.loads(pickle.dumps(value, protocol)) == value
