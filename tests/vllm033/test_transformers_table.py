"""The committed table of transformers' config classes is what those classes say."""

import subprocess
import sys
from pathlib import Path

import pytest
from recordings import all_recordings

from kvplan.offline.models.config_view import class_defaults

KEYS = (
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
    "head_dim",
    "sliding_window",
    "use_sliding_window",
    "max_position_embeddings",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "index_topk",
    "index_head_dim",
    "num_kv_shared_layers",
    "attention_chunk_size",
    "mamba_d_state",
    "mamba_d_conv",
    "mamba_expand",
    "num_nextn_predict_layers",
)
#: What the class makes of its default is not what a config with that default says.
DERIVED = {
    ("bailing_hybrid", "head_dim"),  # the rotary part; docs/models.md
    ("hrm_text", "num_hidden_layers"),  # counted once for each pass
    ("gemma4_text", "head_dim"),  # differs by layer
    ("diffusion_gemma_text", "head_dim"),
    ("hy_v4", "head_dim"),  # the rotary part of a latent
}


def model_types(value):
    """Every ``model_type`` in a config."""
    if isinstance(value, dict):
        if isinstance(value.get("model_type"), str):
            yield value["model_type"]
        for inner in value.values():
            yield from model_types(inner)


RECORDED = sorted(
    {name for found in all_recordings().values() for name in model_types(found["config"])}
)


def test_the_table_is_what_the_script_writes():
    script = Path(__file__).parents[2] / "scripts" / "make_transformers_table.py"
    subprocess.run([sys.executable, script, "--check"], check=True)


@pytest.mark.filterwarnings("ignore")
def test_defaults_are_those_of_the_classes():
    from transformers import CONFIG_MAPPING

    compared = 0
    for name in RECORDED:
        if name not in CONFIG_MAPPING:
            continue
        config, read = CONFIG_MAPPING[name](), class_defaults(name)
        if read.get("use_sliding_window") is False:
            read = {**read, "sliding_window": None}  # as the class and kvplan do
        for key in KEYS:
            # None is derived from other keys, by kvplan as by the class.
            if read.get(key) is not None and (name, key) not in DERIVED:
                assert getattr(config, key) == read[key], (name, key)
                compared += 1
    assert compared > 400
