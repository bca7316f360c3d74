"""Which family every architecture belongs to, and how vLLM names its layers.

Mirrors vllm/model_executor/models/registry.py (0.33).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from kvplan.offline.models.config_view import (
    TEXT_CONFIG_KEYS,
    ConfigView,
    causal_language_model,
    is_model_type,
)
from kvplan.offline.models.drafters import (
    by_layer_types,
    deepseek_v4_window,
    like_the_model,
    mimo_v2_window,
)
from kvplan.offline.models.errors import ModelError, UnknownArchitecture
from kvplan.offline.models.families.chunked_local import chunked_local
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.families.deepseek_v4 import deepseek_v4
from kvplan.offline.models.families.deepseek_v41 import deepseek_v41
from kvplan.offline.models.families.dense import dense
from kvplan.offline.models.families.encoder_decoder import whisper
from kvplan.offline.models.families.glm5_next import glm5_next
from kvplan.offline.models.families.heterogeneous import mimo_v2, nemotron_nas
from kvplan.offline.models.families.inkling import inkling
from kvplan.offline.models.families.linear_attention import (
    bailing_hybrid,
    bailing_v3,
    gated_delta,
    kimi_linear,
    short_conv,
)
from kvplan.offline.models.families.looped import dory, hrm_text, loop_coder
from kvplan.offline.models.families.mamba import (
    falcon_h1,
    granite_hybrid,
    jamba,
    nemotron_h,
    pure_mamba,
    zamba2,
)
from kvplan.offline.models.families.minimax_m3 import minimax_m3
from kvplan.offline.models.families.mla import mla
from kvplan.offline.models.families.qwen4_exp import qwen4_exp
from kvplan.offline.models.families.shared_kv import shared_kv
from kvplan.offline.models.layers import ModelLayers
from kvplan.offline.models.not_planned import reason
from kvplan.offline.models.options import ModelOptions
from kvplan.offline.models.shaping_keys import check_every_key_is_read
from kvplan.offline.models.traits import (
    Mtp,
    Traits,
    all_heads,
    dbrx_kv_heads,
    falcon_kv_heads,
    kv_heads_under,
    latent_head_size,
    multi_query,
    split_head_size,
)

Family = Callable[[FamilyContext], ModelLayers]

_SELF_ATTN = "model.layers.{i}.self_attn.attn"
_ATTN = "model.layers.{i}.attn.attn"
_GPT = "transformer.h.{i}.attn.attn"
_CHATGLM = "transformer.encoder.layers.{i}.self_attention.attn"
_MIXER = "model.layers.{i}.mixer"
_LINEAR_ATTN = "model.layers.{i}.linear_attn"
_LANGUAGE_MODEL = "language_model."


@dataclass(frozen=True)
class Architecture:
    """One row of the table.

    Attributes:
        family: Function that turns a config into layers.
        pattern: vLLM's name of a layer's attention.
        traits: What the code does beyond the config.
        prefix: What a wrapper puts before the names of its language model.
        wraps: Name of the language model that a wrapper runs whatever its text config says.
        delegates: Whether a wrapper runs the language model that its text config names.
    """

    family: Family
    pattern: str = _SELF_ATTN
    traits: Traits = field(default_factory=Traits)
    prefix: str = ""
    wraps: str | None = None
    delegates: bool = False

    @property
    def layer_pattern(self) -> str:
        """VLLM's name of a layer's attention, with the wrapper's part of it."""
        if self.pattern.startswith("."):
            return self.prefix.removesuffix(".") + self.pattern
        return self.prefix + self.pattern


def _table() -> dict[str, Architecture]:
    table: dict[str, Architecture] = {}

    def add(names: str, family: Family, pattern: str = _SELF_ATTN, **traits: Any) -> None:
        for name in names.split():
            table[name] = Architecture(family, pattern, Traits(**traits))

    def change(names: str, **traits: Any) -> None:
        for name in names.split():
            table[name] = replace(table[name], traits=replace(table[name].traits, **traits))

    def wrap(names: str, base: str, prefix: str = _LANGUAGE_MODEL, **traits: Any) -> None:
        row = replace(table[base], prefix=prefix, wraps=base)
        for name in names.split():
            table[name] = replace(row, traits=replace(row.traits, **traits))

    def delegate(names: str, prefix: str = _LANGUAGE_MODEL, **traits: Any) -> None:
        for name in names.split():
            table[name] = Architecture(dense, _SELF_ATTN, Traits(**traits), prefix, delegates=True)

    # Every layer alike.
    add(
        "LlamaForCausalLM LLaMAForCausalLM MistralForCausalLM Ministral3ForCausalLM "
        "InternLM3ForCausalLM IQuestCoderForCausalLM TeleChat3ForCausalLM SolarForCausalLM "
        "TeleChat2ForCausalLM TeleFLMForCausalLM MixtralForCausalLM Qwen2ForCausalLM "
        "Qwen2MoeForCausalLM "
        "Qwen3ForCausalLM Qwen3MoeForCausalLM MiMoForCausalLM Phi3ForCausalLM "
        "GraniteForCausalLM GraniteMoeForCausalLM GraniteMoeSharedForCausalLM "
        "GraniteMoeSWAForCausalLM GraniteSWAForCausalLM Glm4ForCausalLM Glm4MoeForCausalLM "
        "GemmaForCausalLM CohereForCausalLM Ernie4_5ForCausalLM Ernie4_5_MoeForCausalLM "
        "HyperCLOVAXForCausalLM LagunaForCausalLM OlmoeForCausalLM ArceeForCausalLM "
        "FlexOlmoForCausalLM GlmForCausalLM OlmoForCausalLM Olmo2ForCausalLM "
        "SeedOssForCausalLM SmolLM3ForCausalLM Jais2ForCausalLM "
        "HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM MiniMaxM2ForCausalLM "
        "NemotronForCausalLM ApertusForCausalLM HYV3ForCausalLM OrionForCausalLM "
        "MiniCPMForCausalLM DeepseekForCausalLM PanguEmbeddedForCausalLM "
        "PanguProMoEV2ForCausalLM Param2MoEForCausalLM Phi3VForCausalLM MolmoForCausalLM "
        "Phi4MMForCausalLM",
        dense,
    )
    add("PhiForCausalLM StableLmForCausalLM Starcoder2ForCausalLM", dense)
    add("GPT2LMHeadModel GPTJForCausalLM", dense, _GPT, kv_heads=all_heads)
    add("GPTBigCodeForCausalLM", dense, "model.h.{i}.attn.attn", kv_heads=multi_query)
    add("GPTNeoXForCausalLM", dense, "model.layers.{i}.attention.attn", kv_heads=all_heads)
    add("BloomForCausalLM", dense, "transformer.h.{i}.self_attention.attn", kv_heads=all_heads)
    add(
        "FalconForCausalLM",
        dense,
        "transformer.h.{i}.self_attention.attn",
        kv_heads=falcon_kv_heads,
    )
    add("OPTForCausalLM", dense, "model.decoder.layers.{i}.self_attn.attn", kv_heads=all_heads)
    add("MiniCPM3ForCausalLM", dense, kv_heads=all_heads, head_size=latent_head_size)
    # Sliding windows in some layers.
    add("Gemma2ForCausalLM VaultGemmaForCausalLM", dense, period=2)
    add("Gemma3ForCausalLM", dense, period=6)
    add("GptOssForCausalLM", dense, _ATTN, period=2, has_sinks=True)
    add("Cohere2ForCausalLM Cohere2MoeForCausalLM", dense, period=4, window_extra=1)
    add("Exaone4ForCausalLM ExaoneMoeForCausalLM ExaoneMoEForCausalLM", dense, period=4)
    add("Olmo3ForCausalLM", dense, period=4)
    add("CwmForCausalLM MellumForCausalLM AfmoeForCausalLM MuseGlimmerForCausalLM", dense)
    add("Step3p5ForCausalLM PhiMoEForCausalLM", dense)
    add(
        "Step3TextForCausalLM",
        dense,
        ".layers.{i}.self_attn.attn",
        kv_heads=kv_heads_under("num_attention_groups"),
    )
    add("Kolibri1ForCausalLM", dense, period=5)
    add("K2HorizonForCausalLM", dense)
    add("Step1ForCausalLM", dense, kv_heads=kv_heads_under("num_attention_groups"))
    add("Rnj1ForCausalLM", dense, sliding_kinds=frozenset({"chunked_attention"}))
    add("DomynEdgeForCausalLM", dense, "model.layers.{i}.attention.attn")
    add("MiMoV2FlashForCausalLM MiMoV2ForCausalLM", mimo_v2)
    add("DeciLMForCausalLM", nemotron_nas)
    add("Gemma3nForCausalLM", shared_kv, period=5)
    add("Gemma4ForCausalLM", shared_kv, full_heads_differ=True)
    # Chunks, latents, states.
    add("Llama4ForCausalLM", chunked_local)
    add(
        "DeepseekV2ForCausalLM DeepseekV3ForCausalLM AXK1ForCausalLM "
        "Glm4MoeLiteForCausalLM MistralLarge3ForCausalLM PanguUltraMoEForCausalLM "
        "DeepseekV32ForCausalLM GlmMoeDsaForCausalLM SarvamMLAForCausalLM",
        mla,
    )
    add("HYV4ForCausalLM", mla, backend_with_sinks="FLASHMLA_SPARSE")
    add(
        "LongcatFlashForCausalLM LongcatFlashNgramForCausalLM",
        mla,
        "model.layers.{i}.self_attn.{j}.attn",
        attentions_per_layer=2,
    )
    add("InklingForCausalLM InklingForConditionalGeneration", inkling, "model.layers.{i}.attn")
    add("DeepseekV4ForCausalLM", deepseek_v4, "model.layers.{i}.attn")
    add("DeepseekV41ForCausalLM", deepseek_v41, "language_model.model.layers.{i}.attn")
    add("MambaForCausalLM FalconMambaForCausalLM", pure_mamba, "backbone.layers.{i}.mixer")
    add("Mamba2ForCausalLM", pure_mamba, "backbone.layers.{i}.mixer", mamba_version=2)
    add("JambaForCausalLM", jamba, "model.layers.{i}.attn", state_pattern=_MIXER)
    add("GraniteMoeHybridForCausalLM", granite_hybrid, state_pattern=_MIXER)
    add("FalconH1ForCausalLM", falcon_h1, "model.layers.{i}.attn", state_pattern="model.{i}.mixer")
    add(
        "NemotronHForCausalLM NemotronHPuzzleForCausalLM",
        nemotron_h,
        f"{_MIXER}.attn",
        state_pattern=_MIXER,
    )
    add("Zamba2ForCausalLM", zamba2, "model.attn.{i}", state_pattern="{i}.mixer")
    add(
        "Qwen3NextForCausalLM",
        gated_delta,
        state_pattern=_LINEAR_ATTN,
    )
    add(
        "Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM",
        gated_delta,
        state_pattern=_LINEAR_ATTN,
        own_ssm_dtype=True,
    )
    add("Lfm2ForCausalLM", short_conv, state_pattern="model.layers.{i}.short_conv")
    add(
        "Lfm2MoeForCausalLM",
        short_conv,
        state_pattern="model.layers.{i}.short_conv",
        conv_dim_key="hidden_size",
    )
    add(
        "OlmoHybridForCausalLM",
        gated_delta,
        state_pattern=_LINEAR_ATTN,
        exports_checkpoints=False,
    )
    add(
        "DbrxForCausalLM",
        dense,
        "transformer.blocks.{i}.norm_attn_norm.attn.attn",
        kv_heads=dbrx_kv_heads,
    )
    add("ChatGLMModel ChatGLMForConditionalGeneration", dense, _CHATGLM)
    add("InternLM2ForCausalLM", dense, "model.layers.{i}.attention.attn")
    add("ExaoneForCausalLM", dense, "model.h.{i}.attn.attention.attn")
    add(
        "BailingMoeForCausalLM BailingMoeV2ForCausalLM SarvamMoEForCausalLM",
        dense,
        "model.layers.{i}.attention.attn",
    )
    add("Plamo3ForCausalLM", dense, "model.layers.layers.{i}.mixer.attn")
    add("IQuestLoopCoderForCausalLM", loop_coder)
    add("DoryForCausalLM", dory, "backbone.layers.{i}.mixer.attn")
    add("HrmTextForCausalLM", hrm_text, "model.{stack}_module.layers.{i}.self_attn.attn")
    add(
        "BailingMoeV2_5ForCausalLM",
        bailing_hybrid,
        state_pattern="model.layers.{i}.self_attn",
    )
    add("Qwen4ExpForCausalLM", qwen4_exp)
    add("BailingMoeV3ForCausalLM", bailing_v3, state_pattern="model.layers.{i}.self_attn")
    add(
        "KimiLinearForCausalLM",
        kimi_linear,
        "model.layers.{i}.self_attn",
        state_pattern="model.layers.{i}.self_attn",
    )
    add("WhisperForConditionalGeneration", whisper)
    add("MiniMaxM3SparseForCausalLM", minimax_m3)
    add("Glm5NextForCausalLM", glm5_next, state_pattern="model.layers.{i}.self_attn")
    for names, keys in _IGNORED_KEYS.items():
        change(names, ignored_keys=tuple(keys.split()))
    change("GptOssForCausalLM Param2MoEForCausalLM", replicates_kv_heads=False)
    change("Rnj1ForCausalLM Step1ForCausalLM", only_backend="TRITON_ATTN")
    # Layers that vLLM does not divide over pipeline stages.
    change("DoryForCausalLM HrmTextForCausalLM DomynEdgeForCausalLM", single_stage=True)
    # Code that divides the hidden size by the heads, whatever head_dim says.
    change(
        "BloomForCausalLM ChatGLMModel ChatGLMForConditionalGeneration FalconForCausalLM "
        "GraniteMoeForCausalLM GraniteMoeSharedForCausalLM InternLM2ForCausalLM "
        "MiniCPMForCausalLM MolmoForCausalLM OlmoeForCausalLM OrionForCausalLM Qwen2ForCausalLM "
        "Qwen2MoeForCausalLM StableLmForCausalLM GPT2LMHeadModel GPTJForCausalLM OPTForCausalLM "
        "Step1ForCausalLM",
        head_size=split_head_size,
    )
    # Wrappers of one language model.
    wrap(
        "Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration "
        "Qwen2AudioForConditionalGeneration Qwen2_5OmniForConditionalGeneration "
        "Qwen2_5OmniModel AudioFlamingo3ForConditionalGeneration DotsOCRForCausalLM "
        "OpenCUAForConditionalGeneration MoonshotKimiaForCausalLM",
        "Qwen2ForCausalLM",
    )
    wrap(
        "Qwen3VLForConditionalGeneration Qwen3ASRForConditionalGeneration "
        "AriaForConditionalGeneration "
        "Glm4vForConditionalGeneration GlmOcrForConditionalGeneration "
        "GlmAsrForConditionalGeneration Qwen3VLMoeForConditionalGeneration "
        "MossTranscribeDiarizeForConditionalGeneration PaddleOCRVLForConditionalGeneration "
        "Glm4vMoeForConditionalGeneration KeyeForConditionalGeneration "
        "Qwen3OmniMoeForConditionalGeneration Ernie4_5_VLMoeForConditionalGeneration "
        "Cosmos3ForConditionalGeneration KeyeVL1_5ForConditionalGeneration "
        "Qwen3ASRRealtimeGeneration Alpamayo2Super IsaacForConditionalGeneration "
        "LlavaOnevision2ForConditionalGeneration CohereCompassForConditionalGeneration "
        "FunAudioChatForConditionalGeneration Granite4VisionForConditionalGeneration",
        "LlamaForCausalLM",
    )
    wrap("MiniCPMV MiniCPMO", "LlamaForCausalLM", "llm.")
    wrap("BagelForConditionalGeneration", "Qwen2ForCausalLM", mm_prefix=True)
    wrap("Phi4ForCausalLMV", "Phi3ForCausalLM")
    wrap("DiffusionGemmaForBlockDiffusion", "Gemma4ForCausalLM", "", mm_prefix=True)
    wrap(
        "OpenPanguVLForConditionalGeneration",
        "PanguEmbeddedForCausalLM",
        "openpangu.language_model.",
    )
    wrap("UnlimitedOCRForCausalLM", "DeepseekV2ForCausalLM", has_reference_window=True)
    wrap("GLM4VForCausalLM", "ChatGLMModel", "")
    wrap("MiMoV2OmniForCausalLM", "MiMoV2FlashForCausalLM")
    wrap("DeepseekV4ForConditionalGeneration", "DeepseekV4ForCausalLM")
    wrap("Gemma3ForConditionalGeneration", "Gemma3ForCausalLM", mm_prefix=True)
    wrap("Exaone4_5_ForConditionalGeneration", "Exaone4ForCausalLM")
    wrap("Llama4ForConditionalGeneration", "Llama4ForCausalLM")
    wrap(
        "Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration "
        "MiniCPMV4_6ForConditionalGeneration MiniCPMV4_7ForConditionalGeneration "
        "MiniCPMOcrForConditionalGeneration InternS2PreviewForConditionalGeneration",
        "Qwen3_5ForCausalLM",
    )
    wrap("Gemma3nForConditionalGeneration", "Gemma3nForCausalLM")
    wrap(
        "Gemma4ForConditionalGeneration Gemma4UnifiedForConditionalGeneration",
        "Gemma4ForCausalLM",
        mm_prefix=True,
    )
    wrap("KimiVLForConditionalGeneration KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM")
    wrap("KimiK3ForConditionalGeneration", "KimiLinearForCausalLM")
    wrap("MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3SparseForCausalLM")
    wrap("Glm5NextForConditionalGeneration", "Glm5NextForCausalLM")
    wrap("BailingMoeV3VLForConditionalGeneration", "BailingMoeV3ForCausalLM")
    wrap("Qwen4ExpForConditionalGeneration", "Qwen4ExpForCausalLM")
    wrap("MuseGlimmerForConditionalGeneration", "MuseGlimmerForCausalLM", "")
    for name in ("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"):
        pattern = "model.text_model.layers.{i}.self_attn.attn"
        table[name] = Architecture(dense, pattern, wraps="LlamaForCausalLM")
    table["Cosmos3EdgeForConditionalGeneration"] = Architecture(
        dense, "language_model.model.layers.{i}.mixer.attn", Traits(name_step=2)
    )
    # Wrappers of the language model that their text config names.
    delegate(
        "InternVLForConditionalGeneration InternVLChatModel InternS1ForConditionalGeneration "
        "LlavaForConditionalGeneration LlavaNextForConditionalGeneration "
        "LlavaNextVideoForConditionalGeneration LlavaOnevisionForConditionalGeneration "
        "Mistral3ForConditionalGeneration VoxtralForConditionalGeneration UltravoxModel "
        "SkyworkR1VChatModel H2OVLChatModel NVLM_D Eagle2_5_VLForConditionalGeneration "
        "LightOnOCRForConditionalGeneration QianfanOCRForConditionalGeneration "
        "Llama_Nemotron_Nano_VL HCXVisionV2ForCausalLM BeeForConditionalGeneration "
        "RForConditionalGeneration StepVLForConditionalGeneration Step3VLForConditionalGeneration "
        "GraniteSpeechForConditionalGeneration GraniteSpeechPlusForConditionalGeneration "
        "Blip2ForConditionalGeneration Cohere2VisionForConditionalGeneration "
        "DeepseekOCRForCausalLM DeepseekOCR2ForCausalLM NemotronH_Nano_VL_V2 "
        "NemotronH_Nano_Omni_Reasoning_V3 NemotronH_Super_Omni_Reasoning_V3 "
        "NemotronH_Omni_Reasoning_V3"
    )
    delegate("PaliGemmaForConditionalGeneration", mm_prefix=True)
    delegate("Ovis Ovis2_5 Ovis2_6ForCausalLM Ovis2_6_MoeForCausalLM", "llm.")
    delegate("DeepseekVLV2ForCausalLM Lfm2VlForConditionalGeneration", "language.")
    for names, mtp in _MTP.items():
        change(names, mtp=mtp)
    return table


#: Config keys that shape other models' caches and that these do not read.
_IGNORED_KEYS = {
    "PhiForCausalLM StableLmForCausalLM Starcoder2ForCausalLM": "sliding_window",
    "MiniCPM3ForCausalLM": "kv_lora_rank",
    "MiMoV2FlashForCausalLM MiMoV2ForCausalLM": "sliding_window attention_chunk_size",
    "Llama4ForCausalLM InklingForCausalLM InklingForConditionalGeneration BailingMoeV3ForCausalLM "
    "DeepseekV32ForCausalLM GlmMoeDsaForCausalLM HYV4ForCausalLM": "layer_types",
    "DeepseekV4ForCausalLM DeepseekV41ForCausalLM": "index_topk",
    "BloomForCausalLM DbrxForCausalLM GPT2LMHeadModel GPTBigCodeForCausalLM GPTJForCausalLM "
    "GPTNeoXForCausalLM OPTForCausalLM Step1ForCausalLM Step3TextForCausalLM": (
        "num_key_value_heads"
    ),
}

#: Architectures whose MTP layers were recorded from vLLM; those of others are not guessed.
_MTP = {
    "BailingMoeV2_5ForCausalLM DeepseekV32ForCausalLM DeepseekV3ForCausalLM "
    "Ernie4_5_MoeForCausalLM Glm4MoeForCausalLM Glm4MoeLiteForCausalLM GlmMoeDsaForCausalLM "
    "GlmOcrForConditionalGeneration HYV3ForCausalLM HYV4ForCausalLM LongcatFlashForCausalLM "
    "MiMoForCausalLM PanguUltraMoEForCausalLM": Mtp(layer=like_the_model),
    "DeepseekV4ForCausalLM DeepseekV4ForConditionalGeneration": Mtp(
        layer=deepseek_v4_window, name="model.layers.{n}.attn.swa_cache"
    ),
    "ExaoneMoEForCausalLM ExaoneMoeForCausalLM": Mtp(
        layer=by_layer_types, name="mtp.layers.{k}.self_attn.attn"
    ),
    "KimiK3ForConditionalGeneration": Mtp(layer=like_the_model, name="model.layers.{n}.self_attn"),
    "MiMoV2FlashForCausalLM MiMoV2ForCausalLM": Mtp(
        layer=mimo_v2_window, name="model.mtp.layers.{k}.self_attn.attn", only_first=True
    ),
    "NemotronHForCausalLM NemotronHPuzzleForCausalLM": Mtp(
        layer=like_the_model, name="mtp.layers.{k}.mixer.attn"
    ),
    "Qwen3NextForCausalLM": Mtp(
        layer=like_the_model, name="mtp.layers.{k}.self_attn.attn", default_count=1
    ),
    "InternS2PreviewForConditionalGeneration Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration "
    "Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration": Mtp(
        layer=like_the_model, name="mtp.layers.{k}.self_attn.attn"
    ),
}

ARCHITECTURES = _table()

MTP_ARCHITECTURES = tuple(sorted(name for name, row in ARCHITECTURES.items() if row.traits.mtp))

#: Language models of text configs that transformers has a class for and vLLM another name:
#: Mistral Small 4 as vLLM reads it from the checkpoint's params.json.
_OTHER_NAMES = {"mistral4": "MistralLarge3ForCausalLM"}


def language_model(
    name: str, row: Architecture, root: ConfigView, text: ConfigView
) -> Architecture:
    """The row of what an architecture runs: a wrapper's language model, else its own.

    A text config names one by its ``architectures``, else by its ``model_type``.
    Mirrors vllm/model_executor/models/utils.py::init_vllm_registered_model (0.33).

    Raises:
        UnknownArchitecture: If the text config names a language model that is not known.
        ModelError: If it names none, or another than the wrapper runs.
    """
    listed = text.values.get("architectures")
    names = (
        [entry for entry in listed if isinstance(entry, str)] if isinstance(listed, list) else []
    )
    model_type = text.model_type
    by_type = _OTHER_NAMES.get(model_type) or causal_language_model(model_type)
    if row.delegates:
        if not names and by_type is None:
            raise ModelError(
                f"{name} runs the language model that its {text.where} names, and that has no "
                f"architectures, and the model type {model_type!r}, which names none: it is not "
                "guessed"
            )
        inner = find_architecture(names or [str(by_type)])[1]
        traits = replace(inner.traits, mm_prefix=row.traits.mm_prefix, mtp=None)
        return replace(inner, traits=traits, prefix=row.prefix)
    runs = row.wraps or name
    known = [entry for entry in (*names, by_type) if entry in ARCHITECTURES]
    if known and not any(_same_code(entry, runs) for entry in known):
        raise ModelError(
            f"{name} runs {runs}, and its {text.where} is of another language model, {known[0]}"
        )
    is_own = bool(root.model_type) and model_type.startswith(root.model_type)
    if not known and model_type and not (is_own or is_model_type(model_type)):
        raise ModelError(
            f"{name} runs {runs}, and its {text.where} is of model type {model_type!r}, which is "
            "not known: it is not guessed"
        )
    return row


def _same_code(one: str, other: str) -> bool:
    """Whether two architectures register the same caches for the same text config."""

    def code(name: str) -> tuple[Any, ...]:
        row = ARCHITECTURES[name]
        row = ARCHITECTURES[row.wraps] if row.wraps else row
        return row.family, row.pattern, replace(row.traits, mtp=None)

    return one == other or code(one) == code(other)


def model_layers(
    name: str,
    architecture: Architecture,
    root: ConfigView,
    text: ConfigView,
    options: ModelOptions,
    dtype: str,
) -> tuple[FamilyContext, ModelLayers]:
    """What an architecture's family makes of a config, and what it was given.

    Raises:
        ModelError: If the config is wrong, or says something of its cache that is not read.
    """
    if text is not root:
        architecture = language_model(name, architecture, root, text)
    elif architecture.delegates:
        raise ModelError(
            f"{name} runs the language model of a nested config, and the config has none of "
            f"{', '.join(TEXT_CONFIG_KEYS)}"
        )
    context = FamilyContext(
        architecture=name,
        family=architecture.family.__module__.rpartition(".")[2],
        root=root,
        text=text,
        options=options,
        dtype=dtype,
        pattern=architecture.layer_pattern,
        prefix=architecture.prefix,
        traits=architecture.traits,
    )
    model = architecture.family(context)
    check_every_key_is_read(name, text, model, architecture.traits.ignored_keys)
    return context, model


def known_architectures() -> list[str]:
    """Every architecture that can be planned, sorted."""
    return sorted(ARCHITECTURES)


def find_architecture(names: list[str]) -> tuple[str, Architecture]:
    """The first known architecture of a config's list.

    Raises:
        UnknownArchitecture: If none is known.
    """
    for name in names:
        if name in ARCHITECTURES:
            return name, ARCHITECTURES[name]
    known = known_architectures()
    near = difflib.get_close_matches(names[0], known, n=1, cutoff=0.75)
    raise UnknownArchitecture(names[0], near[0] if near else None, len(known), reason(names[0]))
