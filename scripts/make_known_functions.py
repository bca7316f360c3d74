#!/usr/bin/env python3
"""Write down what the planner's functions of the installed vLLM say: run it beside each release.

kvplan plans natively where all of them are those of one release; see kvplan/vllm/decide.py.
"""

import json
from pathlib import Path

from kvplan.vllm import decide
from kvplan.vllm.detect import detect

PATH = Path(__file__).parents[1] / "kvplan" / "vllm" / "known_functions.json"


def main() -> None:
    vllm = detect()
    known = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    found = decide.fingerprints(decide.Known(vllm).fingerprinted)
    known[vllm.version] = dict(sorted(found.items()))
    PATH.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")
    print(f"{PATH}: vLLM {vllm.version}, {len(found)} functions and classes")


if __name__ == "__main__":
    main()
