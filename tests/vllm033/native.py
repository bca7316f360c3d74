"""kvplan's answer to a request, in the oracle's form, and the comparison of the two."""

from typing import Any

import oracle

import kvplan
from kvplan import planning, specs
from kvplan.specs import from_dict

# What vLLM raises on purpose, and what kvplan must raise then. Anything else that vLLM raises is
# an assertion or a crash of its own; there any of kvplan's errors is right.
DELIBERATE = {"ValueError": ValueError, "NotImplementedError": NotImplementedError}
KVPLAN_ERRORS = (ValueError, AssertionError, NotImplementedError)


def inputs(
    request: dict[str, Any], **config: Any
) -> tuple[kvplan.PlanningConfig, list[dict[str, Any]], list[int]]:
    """The config, specs per worker and memory per worker for a request."""
    made = [from_dict(s) for s in request["specs"]]
    per_worker = [
        {name: made[i] for name, i in layers} for layers in oracle.expand_workers(request)
    ]
    memory = [w["available_memory"] for w in request["workers"]]
    return planning_config(request["config"] | config), per_worker, memory


def planning_config(described: dict[str, Any]) -> kvplan.PlanningConfig:
    """The config of a request, with 0.33's rule for which groups are the drafter's."""
    return kvplan.PlanningConfig(draft_rule="is_draft", **described)


def make_group(described: dict[str, Any]) -> Any:
    """A kvplan `KVCacheGroupSpec` from the oracle's description of a group."""
    spec = dict(described["kv_cache_spec"])
    if spec["kind"] == "UniformTypeKVCacheSpecs":
        layers = {name: from_dict(s) for name, s in spec["kv_cache_specs"]}
        built = specs.UniformTypeKVCacheSpecs(block_size=spec["block_size"], kv_cache_specs=layers)
    else:
        built = from_dict(spec)
    return specs.KVCacheGroupSpec(
        described["layer_names"], built, is_eagle_group=described["is_eagle_group"]
    )


def attempt(function: Any, *args: Any) -> Any:
    """The function's answer, or `{"error": exception}` for kvplan's kinds of error."""
    try:
        return function(*args)
    except KVPLAN_ERRORS as e:
        return {"error": e}


def run(request: dict[str, Any], **config: Any) -> dict[str, Any]:
    """Plan a request with kvplan and describe everything it decided, or its error."""
    try:
        config, per_worker, memory = inputs(request, **config)
        plan = kvplan.plan(config, per_worker, memory)
    except KVPLAN_ERRORS as e:
        return {"error": e}
    fitted = config.replace(max_model_len=plan.max_model_len)
    configs = list(plan.kv_cache_configs)
    scheduler = attempt(planning.generate_scheduler_kv_cache_config, configs)
    outcome = {
        "max_model_len": plan.max_model_len,
        "kv_cache_groups": [oracle.describe_group(g) for g in plan.kv_cache_groups],
        "kv_cache_configs": [oracle.describe_kv_cache_config(c) for c in configs],
        "scheduler": scheduler
        if isinstance(scheduler, dict)
        else oracle.describe_kv_cache_config(scheduler),
    }
    capacity = attempt(planning.get_kv_cache_capacity, fitted, configs[0])
    outcome["capacity"] = capacity if isinstance(capacity, dict) else list(capacity)
    sizes = attempt(planning.resolve_kv_cache_block_sizes, configs[0], fitted)
    outcome["block_sizes"] = sizes if isinstance(sizes, dict) else list(sizes)
    return outcome


def same_error(expected: dict[str, Any], found: Any) -> bool:
    """Whether kvplan's error is of the kind that vLLM's demands.

    A spec that contradicts itself may be reported before whatever vLLM stumbles over first. A
    `NotImplementedError` without a message is an abstract property of vLLM's, not a refusal.
    """
    if not (isinstance(found, dict) and "error" in found):
        return False
    error = found["error"]
    if isinstance(error, kvplan.InconsistentSpec) or not expected["message"]:
        return isinstance(error, KVPLAN_ERRORS)
    return isinstance(error, DELIBERATE.get(expected["error"], KVPLAN_ERRORS))


def foreign_layers(described: dict[str, Any]) -> set[str]:
    """The layers that vLLM places on a worker that does not own them.

    They are those of uniform-type groups of which the worker owns no layer. kvplan places nothing
    there, unless it is told to repeat vLLM: the one deliberate difference.
    """
    layers: set[str] = set()
    for group in described["kv_cache_groups"]:
        spec = group["kv_cache_spec"]
        if not group["layer_names"] and spec["kind"] == "UniformTypeKVCacheSpecs":
            layers.update(name for name, _ in spec["kv_cache_specs"])
    return layers


def without_foreign_layers(outcome: dict[str, Any]) -> dict[str, Any]:
    """An outcome of vLLM's without the tensors of layers that a worker does not own."""
    configs = []
    for described in outcome["kv_cache_configs"]:
        foreign = foreign_layers(described)
        tensors = [t for t in described["kv_cache_tensors"] if not foreign.issuperset(t["layers"])]
        configs.append(described | {"kv_cache_tensors": tensors})
    # The scheduler's config is the first worker's, with one spec per group.
    scheduler = outcome["scheduler"] | {"kv_cache_tensors": configs[0]["kv_cache_tensors"]}
    return outcome | {"kv_cache_configs": configs, "scheduler": scheduler}


def differences(expected: Any, found: Any, where: str = "$") -> list[str]:
    """One line per place where two descriptions differ, at most a dozen."""
    if isinstance(expected, dict) and "error" in expected:
        if same_error(expected, found):
            return []
        shown = repr(found.get("error", "a plan") if isinstance(found, dict) else found)
        return [f"{where}: vLLM raises {expected['error']}: {expected['message']}; kvplan: {shown}"]
    if isinstance(found, dict) and "error" in found:
        return [f"{where}: kvplan raises {found['error']!r}, vLLM does not"]
    if isinstance(expected, dict) and isinstance(found, dict):
        odd = set(expected) ^ set(found)
        lines = [f"{where}: only one has {odd}"] if odd else []
        for key in expected.keys() & found.keys():
            lines += differences(expected[key], found[key], f"{where}.{key}")
        return lines[:12]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        lines = []
        for i, (e, f) in enumerate(zip(expected, found, strict=True)):
            lines += differences(e, f, f"{where}[{i}]")
        return lines[:12]
    if type(expected) is type(found) and expected == found:
        return []
    return [f"{where}: vLLM {expected!r}, kvplan {found!r}"]


def differences_beside_idle(request: dict[str, Any], busy: list[int]) -> list[str]:
    """The differences where only the `busy` workers have layers, which vLLM has no answer for.

    They must be planned as vLLM plans them alone, and the others hold nothing.
    """
    layers = oracle.expand_workers(request)
    memory = [w["available_memory"] for w in request["workers"]]
    alone = [{"available_memory": memory[w], "layers": layers[w]} for w in busy]
    expected, found = oracle.run(request | {"workers": alone}), run(request)
    if "error" in expected or "error" in found:
        return differences(expected, found)
    configs = found["kv_cache_configs"]
    idle = [config for w, config in enumerate(configs) if w not in busy]
    lines = [f"an idle worker's: {c}" for c in idle if c["kv_cache_tensors"]]
    lines += differences(
        [configs[busy[0]]["num_blocks"]] * len(idle), [c["num_blocks"] for c in idle]
    )
    expected = without_foreign_layers(expected)
    for name in ("max_model_len", "kv_cache_groups"):
        lines += differences(expected[name], found[name], name)
    return lines + differences(expected["kv_cache_configs"], [configs[w] for w in busy])


def compare(request: dict[str, Any]) -> list[str]:
    """The differences between vLLM's and kvplan's answers to a request; none is right."""
    expected = oracle.run(request)
    busy = [w for w, layers in enumerate(oracle.expand_workers(request)) if layers]
    if "error" in expected and 0 < len(busy) < len(request["workers"]):
        return differences_beside_idle(request, busy)
    if "error" in expected:
        return differences(expected, run(request))
    lines = []
    if any(map(foreign_layers, expected["kv_cache_configs"])):
        lines += differences(expected, run(request, place_foreign_layers=True))
        expected = without_foreign_layers(expected)
    return lines + differences(expected, run(request))
