"""Which family every architecture belongs to, and how vLLM names its layers.

Mirrors vllm/model_executor/models/registry.py (0.33).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.offline.models.errors import UnknownArchitecture
from kvplan.offline.models.families.chunked_local import chunked_local
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.families.deepseek_v4 import deepseek_v4
from kvplan.offline.models.families.deepseek_v41 import deepseek_v41
from kvplan.offline.models.families.dense import dense
from kvplan.offline.models.families.encoder_decoder import whisper
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
from kvplan.offline.models.families.mla import mla
from kvplan.offline.models.families.qwen4_exp import qwen4_exp
from kvplan.offline.models.families.shared_kv import shared_kv
from kvplan.offline.models.layers import ModelLayers
from kvplan.offline.models.not_planned import reason

Family = Callable[[FamilyContext], ModelLayers]

_SELF_ATTN = "model.layers.{i}.self_attn.attn"
_ATTN = "model.layers.{i}.attn.attn"
_GPT = "transformer.h.{i}.attn.attn"
_CHATGLM = "transformer.encoder.layers.{i}.self_attention.attn"
_MULTIMODAL = "language_model."


@dataclass(frozen=True)
class Architecture:
    """One row of the table.

    Attributes:
        family: Function that turns a config into layers.
        pattern: vLLM's name of a layer's attention.
        settings: What the family needs to know beyond the config.
    """

    family: Family
    pattern: str = _SELF_ATTN
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def family_name(self) -> str:
        """Name of the family's module."""
        return self.family.__module__.rpartition(".")[2]


#: Architectures whose code divides the hidden size by the heads, whatever ``head_dim`` says.
_WITHOUT_HEAD_DIM = (
    "BloomForCausalLM",
    "ChatGLMModel",
    "ChatGLMForConditionalGeneration",
    "FalconForCausalLM",
    "GraniteMoeForCausalLM",
    "GraniteMoeSharedForCausalLM",
    "InternLM2ForCausalLM",
    "MiniCPMForCausalLM",
    "MolmoForCausalLM",
    "OlmoeForCausalLM",
    "OrionForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "StableLmForCausalLM",
    "GPT2LMHeadModel",
    "GPTJForCausalLM",
    "OPTForCausalLM",
)


#: Architectures that vLLM runs on one backend only, which it does not choose by itself.
_ONLY_WITH_BACKEND = {"Rnj1ForCausalLM": "TRITON_ATTN", "Step1ForCausalLM": "TRITON_ATTN"}

#: Architectures whose layers vLLM does not divide over pipeline stages.
_SINGLE_STAGE = ("DoryForCausalLM", "HrmTextForCausalLM", "DomynEdgeForCausalLM")


def _prefixed(row: Architecture, prefix: str, settings: dict[str, Any]) -> Architecture:
    """A language model's row as part of a larger model."""
    merged = {**row.settings, **settings, "prefix": prefix}
    if "linear_pattern" in merged:
        merged["linear_pattern"] = prefix + merged["linear_pattern"]
    return Architecture(row.family, prefix + row.pattern, merged)


def _table() -> dict[str, Architecture]:
    table: dict[str, Architecture] = {}

    def add(names: str, family: Family, pattern: str = _SELF_ATTN, **settings: Any) -> None:
        for name in names.split():
            table[name] = Architecture(family, pattern, dict(settings))

    def multimodal(names: str, base: str, prefix: str = _MULTIMODAL, **settings: Any) -> None:
        for name in names.split():
            table[name] = _prefixed(table[base], prefix, settings)

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
    add("PhiForCausalLM StableLmForCausalLM Starcoder2ForCausalLM", dense, ignores_window=True)
    add("GPT2LMHeadModel GPTJForCausalLM", dense, _GPT, all_heads=True)
    add("GPTBigCodeForCausalLM", dense, "model.h.{i}.attn.attn", gpt_bigcode=True)
    add("GPTNeoXForCausalLM", dense, "model.layers.{i}.attention.attn", all_heads=True)
    add("BloomForCausalLM", dense, "transformer.h.{i}.self_attention.attn", all_heads=True)
    add("FalconForCausalLM", dense, "transformer.h.{i}.self_attention.attn", falcon=True)
    add("OPTForCausalLM", dense, "model.decoder.layers.{i}.self_attn.attn", all_heads=True)
    add("MiniCPM3ForCausalLM", dense, mla_as_heads=True, all_heads=True)
    # Sliding windows in some layers.
    add("Gemma2ForCausalLM VaultGemmaForCausalLM", dense, period=2)
    add("Gemma3ForCausalLM", dense, period=6)
    add("GptOssForCausalLM", dense, _ATTN, period=2, sinks=True)
    add("Cohere2ForCausalLM Cohere2MoeForCausalLM", dense, period=4, window_extra=1)
    add("Exaone4ForCausalLM ExaoneMoeForCausalLM ExaoneMoEForCausalLM", dense, period=4)
    add("Olmo3ForCausalLM", dense, period=4)
    add("CwmForCausalLM MellumForCausalLM AfmoeForCausalLM MuseGlimmerForCausalLM", dense)
    add("Step3p5ForCausalLM PhiMoEForCausalLM", dense)
    add(
        "Step3TextForCausalLM",
        dense,
        ".layers.{i}.self_attn.attn",
        kv_heads_key="num_attention_groups",
    )
    add("Kolibri1ForCausalLM", dense, period=5)
    add("K2HorizonForCausalLM", dense)
    add("Step1ForCausalLM", dense, kv_heads_key="num_attention_groups", split_hidden=True)
    add("Rnj1ForCausalLM", dense, sliding_kinds=("chunked_attention",))
    add("DomynEdgeForCausalLM", dense, "model.layers.{i}.attention.attn")
    add("MiMoV2FlashForCausalLM MiMoV2ForCausalLM", mimo_v2)
    add("DeciLMForCausalLM", nemotron_nas)
    add("Gemma3nForCausalLM", shared_kv, "model.layers.{i}.self_attn.attn", period=5)
    add("Gemma4ForCausalLM", shared_kv, global_heads=True)
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
    add("Mamba2ForCausalLM", pure_mamba, "backbone.layers.{i}.mixer", version=2)
    add("JambaForCausalLM", jamba, "model.layers.{i}.attn")
    add("GraniteMoeHybridForCausalLM", granite_hybrid)
    add("FalconH1ForCausalLM", falcon_h1, "model.layers.{i}.attn")
    add("NemotronHForCausalLM NemotronHPuzzleForCausalLM", nemotron_h)
    add("Zamba2ForCausalLM", zamba2)
    add(
        "Qwen3NextForCausalLM",
        gated_delta,
        linear_pattern="model.layers.{i}.linear_attn",
    )
    add(
        "Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM",
        gated_delta,
        linear_pattern="model.layers.{i}.linear_attn",
        own_ssm_dtype=True,
    )
    add("Lfm2ForCausalLM", short_conv, linear_pattern="model.layers.{i}.short_conv")
    add(
        "Lfm2MoeForCausalLM",
        short_conv,
        linear_pattern="model.layers.{i}.short_conv",
        conv_dim_key="hidden_size",
    )
    add(
        "OlmoHybridForCausalLM",
        gated_delta,
        linear_pattern="model.layers.{i}.linear_attn",
        exports_checkpoints=False,
    )
    add("DbrxForCausalLM", dense, "transformer.blocks.{i}.norm_attn_norm.attn.attn", dbrx=True)
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
        linear_pattern="model.layers.{i}.self_attn",
    )
    add("Qwen4ExpForCausalLM", qwen4_exp)
    add("BailingMoeV3ForCausalLM", bailing_v3, linear_pattern="model.layers.{i}.self_attn")
    add(
        "KimiLinearForCausalLM",
        kimi_linear,
        "model.layers.{i}.self_attn",
        linear_pattern="model.layers.{i}.self_attn",
    )
    add("WhisperForConditionalGeneration", whisper)
    for name, backend in _ONLY_WITH_BACKEND.items():
        table[name].settings["only_backend"] = backend
    for name in ("GptOssForCausalLM", "Param2MoEForCausalLM"):
        table[name].settings["no_replication"] = True
    for name in _SINGLE_STAGE:
        table[name].settings["single_stage"] = True
    for name in _WITHOUT_HEAD_DIM:
        table[name].settings["split_hidden"] = True
    # Language models of multimodal wrappers.
    multimodal(
        "Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration "
        "Qwen2AudioForConditionalGeneration Qwen2_5OmniForConditionalGeneration "
        "Qwen2_5OmniModel Qwen3VLForConditionalGeneration Qwen3ASRForConditionalGeneration "
        "AriaForConditionalGeneration AudioFlamingo3ForConditionalGeneration "
        "Glm4vForConditionalGeneration GlmOcrForConditionalGeneration "
        "GlmAsrForConditionalGeneration Qwen3VLMoeForConditionalGeneration "
        "MossTranscribeDiarizeForConditionalGeneration PaddleOCRVLForConditionalGeneration "
        "Glm4vMoeForConditionalGeneration DotsOCRForCausalLM KeyeForConditionalGeneration "
        "Qwen3OmniMoeForConditionalGeneration OpenCUAForConditionalGeneration "
        "MoonshotKimiaForCausalLM Ernie4_5_VLMoeForConditionalGeneration "
        "Cosmos3ForConditionalGeneration KeyeVL1_5ForConditionalGeneration "
        "Qwen3ASRRealtimeGeneration Alpamayo2Super IsaacForConditionalGeneration "
        "LlavaOnevision2ForConditionalGeneration CohereCompassForConditionalGeneration "
        "FunAudioChatForConditionalGeneration",
        "LlamaForCausalLM",
    )
    multimodal(
        "InternVLForConditionalGeneration InternVLChatModel InternS1ForConditionalGeneration "
        "LlavaForConditionalGeneration LlavaNextForConditionalGeneration "
        "LlavaNextVideoForConditionalGeneration LlavaOnevisionForConditionalGeneration "
        "Mistral3ForConditionalGeneration VoxtralForConditionalGeneration UltravoxModel "
        "SkyworkR1VChatModel H2OVLChatModel NVLM_D Eagle2_5_VLForConditionalGeneration "
        "LightOnOCRForConditionalGeneration QianfanOCRForConditionalGeneration "
        "Llama_Nemotron_Nano_VL HCXVisionV2ForCausalLM BeeForConditionalGeneration "
        "RForConditionalGeneration StepVLForConditionalGeneration "
        "Granite4VisionForConditionalGeneration "
        "GraniteSpeechForConditionalGeneration GraniteSpeechPlusForConditionalGeneration",
        "LlamaForCausalLM",
        delegates=_MULTIMODAL,
    )
    multimodal("BagelForConditionalGeneration", "Qwen2ForCausalLM", mm_prefix=True)
    multimodal("Phi4ForCausalLMV", "Phi3ForCausalLM")
    multimodal("DiffusionGemmaForBlockDiffusion", "Gemma4ForCausalLM", "", mm_prefix=True)
    table["Cosmos3EdgeForConditionalGeneration"] = Architecture(
        dense, "language_model.model.layers.{i}.mixer.attn", {"name_step": 2}
    )
    multimodal("MiniCPMV MiniCPMO", "LlamaForCausalLM", "llm.")
    multimodal(
        "Ovis Ovis2_5 Ovis2_6ForCausalLM Ovis2_6_MoeForCausalLM",
        "LlamaForCausalLM",
        "llm.",
        delegates="llm.",
    )
    multimodal(
        "OpenPanguVLForConditionalGeneration",
        "PanguEmbeddedForCausalLM",
        "openpangu.language_model.",
    )
    multimodal("UnlimitedOCRForCausalLM", "DeepseekV2ForCausalLM", rswa=True)
    multimodal("GLM4VForCausalLM", "ChatGLMModel", "")
    multimodal("MiMoV2OmniForCausalLM", "MiMoV2FlashForCausalLM")
    multimodal("DeepseekV4ForConditionalGeneration", "DeepseekV4ForCausalLM")
    for name in ("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"):
        table[name] = Architecture(dense, "model.text_model.layers.{i}.self_attn.attn")
    multimodal("Blip2ForConditionalGeneration", "OPTForCausalLM", delegates=_MULTIMODAL)
    multimodal(
        "PaliGemmaForConditionalGeneration",
        "GemmaForCausalLM",
        delegates=_MULTIMODAL,
        mm_prefix=True,
    )
    multimodal("Gemma3ForConditionalGeneration", "Gemma3ForCausalLM", mm_prefix=True)
    multimodal("Cohere2VisionForConditionalGeneration", "Cohere2ForCausalLM")
    multimodal("Exaone4_5_ForConditionalGeneration", "Exaone4ForCausalLM")
    multimodal("Llama4ForConditionalGeneration", "Llama4ForCausalLM")
    multimodal("Step3VLForConditionalGeneration", "Step3TextForCausalLM", "language_model")
    multimodal(
        "Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration "
        "MiniCPMV4_6ForConditionalGeneration MiniCPMV4_7ForConditionalGeneration "
        "MiniCPMOcrForConditionalGeneration InternS2PreviewForConditionalGeneration",
        "Qwen3_5ForCausalLM",
    )
    multimodal("Gemma3nForConditionalGeneration", "Gemma3nForCausalLM")
    multimodal(
        "Gemma4ForConditionalGeneration Gemma4UnifiedForConditionalGeneration",
        "Gemma4ForCausalLM",
        mm_prefix=True,
    )
    multimodal(
        "KimiVLForConditionalGeneration KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM"
    )
    multimodal(
        "DeepseekOCRForCausalLM DeepseekOCR2ForCausalLM",
        "DeepseekV2ForCausalLM",
        delegates=_MULTIMODAL,
    )
    multimodal(
        "DeepseekVLV2ForCausalLM", "DeepseekV2ForCausalLM", "language.", delegates="language."
    )
    multimodal(
        "NemotronH_Nano_VL_V2 NemotronH_Nano_Omni_Reasoning_V3 "
        "NemotronH_Super_Omni_Reasoning_V3 NemotronH_Omni_Reasoning_V3",
        "NemotronHForCausalLM",
        delegates=_MULTIMODAL,
    )
    multimodal("KimiK3ForConditionalGeneration", "KimiLinearForCausalLM")
    multimodal("BailingMoeV3VLForConditionalGeneration", "BailingMoeV3ForCausalLM")
    multimodal("Qwen4ExpForConditionalGeneration", "Qwen4ExpForCausalLM")
    multimodal("Lfm2VlForConditionalGeneration", "Lfm2ForCausalLM", "language.")
    multimodal("MuseGlimmerForConditionalGeneration", "MuseGlimmerForCausalLM", "")
    return table


ARCHITECTURES = _table()


#: Language models that a wrapper's text config names by its model type only.
_BY_MODEL_TYPE = {
    "gemma2": "Gemma2ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
}


def language_model(row: Architecture, text: Mapping[str, Any]) -> Architecture:
    """The row of what a wrapper wraps, where the text config decides; else the wrapper's own.

    Mirrors vllm/model_executor/models/utils.py::init_vllm_registered_model (0.33).

    Raises:
        UnknownArchitecture: If the text config names a language model that is not known.
    """
    prefix = row.settings.get("delegates")
    if prefix is None:
        return row
    names = text.get("architectures") or [_BY_MODEL_TYPE.get(str(text.get("model_type")))]
    names = [name for name in names if isinstance(name, str)]
    if not names:
        return row
    _, inner = find_architecture(names)
    shared = {key: row.settings[key] for key in ("mm_prefix",) if key in row.settings}
    return _prefixed(inner, prefix, shared)


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
