"""Make a request that shows a difference as small as it gets while it still shows one."""

from collections.abc import Callable, Iterator
from typing import Any

import oracle

Request = dict[str, Any]


def smaller(request: Request) -> Iterator[Request]:
    """Requests with something left out: halves first, then single workers, layers, fields."""
    workers = [
        {"available_memory": w["available_memory"], "layers": layers}
        for w, layers in zip(request["workers"], oracle.expand_workers(request), strict=True)
    ]
    request = request | {"workers": workers}
    for i in range(len(workers) if len(workers) > 1 else 0):
        yield request | {"workers": workers[:i] + workers[i + 1 :]}
    names = list(dict.fromkeys(name for w in workers for name, _ in w["layers"]))
    size = len(names) // 2
    while size:
        for start in range(0, len(names), size):
            dropped = set(names[start : start + size])
            yield request | {
                "workers": [
                    w | {"layers": [row for row in w["layers"] if row[0] not in dropped]}
                    for w in workers
                ]
            }
        size //= 2
    for key in request["config"]:
        if key != "max_model_len":
            yield request | {"config": {k: v for k, v in request["config"].items() if k != key}}
    for i, spec in enumerate(request["specs"]):
        for key in spec:
            fewer = {k: v for k, v in spec.items() if k != key}
            try:
                oracle.make_spec(fewer)
            except Exception:
                continue
            yield request | {"specs": request["specs"][:i] + [fewer] + request["specs"][i + 1 :]}


def drop_unused_specs(request: Request) -> Request:
    used = sorted({i for layers in oracle.expand_workers(request) for _, i in layers})
    return request | {
        "specs": [request["specs"][i] for i in used],
        "workers": [
            {"available_memory": w["available_memory"]}
            | {"layers": [[name, used.index(i)] for name, i in layers]}
            for w, layers in zip(request["workers"], oracle.expand_workers(request), strict=True)
        ],
    }


def shrink(request: Request, differs: Callable[[Request], bool], most_tries: int = 2000) -> Request:
    """The smallest request found for which `differs` still holds."""
    tries = 0
    progress = True
    while progress and tries < most_tries:
        progress = False
        for candidate in smaller(request):
            tries += 1
            if differs(candidate):
                request, progress = drop_unused_specs(candidate), True
                break
            if tries >= most_tries:
                break
    return request
