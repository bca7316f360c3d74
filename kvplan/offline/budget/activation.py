"""The most memory that a step takes beside weights and caches, as vLLM's profile run finds it.

The run encodes as many images as a step may, runs the model over all tokens of a step, and samples
for all sequences. Each phase is linear in the numbers of tokens and sequences; the largest rules.
The forms are those of eager execution, proved by recordings of vLLM 0.33.0's own profile run
(tests/data/budget). torch.compile fuses some of it away, so the forward phase is within 6 %.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.offline.budget.parameters import (
    has_gate,
    is_multimodal,
    largest,
    mlp_width,
    num_experts,
    tower_of,
)
from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.context_length import derived_max_model_len
from kvplan.offline.models.layers import AttentionLayer, MLALayer, StateLayer
from kvplan.offline.models.plan_input import ReadLayers

MIB = 1 << 20
#: Bytes that the sampler takes for a logit: the logits, in float32, and two buffers of that size.
_SAMPLER_BYTES_PER_LOGIT = 14
#: cuBLAS's workspace, which the first product allocates: Hopper and later, and before.
_CUBLAS_BYTES = {True: 32 * MIB, False: 8320 << 10}
#: Cached tokens of which dense latent attention makes keys and values at once; mirrors
#: vllm/model_executor/layers/attention/mla_attention.py::MLACommonMetadataBuilder
#: .determine_chunked_prefill_workspace_size (0.33).
_CACHED_CHUNK_TOKENS = 64 << 10
#: What an indexer of sparse attention reserves for its logits, and for the choice of its top k.
_INDEX_LOGITS_BYTES, _INDEX_TOPK_BYTES = 512 * MIB, MIB
#: Bytes of a cached token that an indexer gathers: 128 of fp8 and a scale.
_INDEX_KEY_BYTES = 132
#: Hidden states within a norm that is computed in float32 and not fused.
_WIDE_NORM = 11
#: Architectures whose profile run is recorded (tests/data/budget).
RECORDED = frozenset((
    "DeepseekV32ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV4ForCausalLM",
    "Gemma2ForCausalLM", "Gemma3ForConditionalGeneration", "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration", "Glm4MoeForCausalLM", "GlmMoeDsaForCausalLM",
    "GptOssForCausalLM", "JambaForCausalLM", "Lfm2ForCausalLM", "Llama4ForConditionalGeneration",
    "LlamaForCausalLM", "MiMoV2FlashForCausalLM", "MiniMaxM2ForCausalLM", "MistralForCausalLM",
    "MixtralForCausalLM", "NemotronHForCausalLM", "Phi3ForCausalLM", "Qwen2ForCausalLM",
    "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM",
    "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
    "WhisperForConditionalGeneration",
))  # fmt: skip
NOT_RECORDED = "its architecture not recorded"
#: Types of models that encode an image at its own resolution, and the tokens of the largest one
#: that their processors allow.
_ANY_RESOLUTION = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
_LARGEST_IMAGE = 16384
#: From these versions on the V2 model runner, of dense models and of all.
_V2_OF_DENSE, _V2_OF_ALL = (0, 25), (0, 31)
#: From this version on it profiles the sampler with every parameter set, as the V1 runner did.
_WHOLE_SAMPLER = (0, 33)


@dataclass(frozen=True)
class Indexer:
    """What sparse latent attention keeps and needs.

    Attributes:
        topk: Tokens that a token attends to.
        layers: Layers with buffers of their own for these.
        gathered_bytes: Where what many requests have cached is gathered.
        gathered_bytes_per_token: The same for a token of a step.
        replicated: Elements of a token at the worst place of a layer, on each rank.
        divided: Those that TP ranks divide.
    """

    topk: int
    layers: int
    gathered_bytes: int
    gathered_bytes_per_token: int
    replicated: int
    divided: int

    def workspace_bytes(self, tokens: int) -> int:
        """What stays behind."""
        return self.gathered_bytes + tokens * self.gathered_bytes_per_token

    def buffer_bytes(self, tokens: int, sequences: int) -> int:
        """What the model's layers allocate when they are built; vLLM's log calls it weights."""
        chosen = tokens * 4 * (self.topk + self.layers)
        return chosen + sequences * 4 * self.layers * (self.topk + 1)

    def step_bytes(self, tokens: int, ranks: int, itemsize: int) -> int:
        """Peak within a layer."""
        exchanged = 2 * tokens * self.topk * 4 if ranks > 1 else 0
        elements = self.replicated + self.divided // ranks
        return _INDEX_LOGITS_BYTES + exchanged + tokens * elements * itemsize


@dataclass(frozen=True)
class ModelShape:
    """The sizes that a step's memory depends on.

    Attributes:
        hidden: Elements of a token's hidden state.
        vocabulary: Entries, padded as ranks need it.
        attention: Elements of queries, keys and values of a token over all ranks.
        mlp: Width of the dense MLP, or 0.
        gated: Whether an MLP has a gate.
        looked_up: Elements of a token that its layers look up for themselves, over all layers.
        experts_per_token: Experts that a token is sent to, or 0.
        extra_states: Hidden states that the model's code keeps beside those that every MLP needs.
        expert_width: Width of an expert.
        shared_width: Width of the shared experts.
        latent_width: Elements of a cached token's keys and values over all ranks where dense latent
            attention makes them, or 0.
        indexer: Of sparse latent attention.
        has_wide_norm: Whether norms are computed in float32.
        has_mtp: Whether layers of the model predict further tokens.
        drafter_mlp: Width of the MLP of a drafter that reads the model's hidden states, or 0.
        is_packed: Whether experts are in a packed 4-bit format.
        encoder_bytes_per_token: Bytes that the encoder takes for each token it makes, or 0.
        encoder_item_tokens: Tokens of one item at most, or 0.
        encoder_inputs: Elements of an item, e.g. of its pixels, for each token made of it, or 0.
        has_states: Whether there are recurrent layers.
        is_multimodal: Whether embeddings of items are kept beside those of tokens.
        encodes: Whether the profile run encodes items.
    """

    hidden: int
    vocabulary: int
    attention: int
    mlp: int
    gated: bool
    extra_states: int = 0
    looked_up: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    shared_width: int = 0
    latent_width: int = 0
    indexer: Indexer | None = None
    has_wide_norm: bool = False
    has_mtp: bool = False
    drafter_mlp: int = 0
    is_packed: bool = False
    encoder_bytes_per_token: int = 0
    encoder_item_tokens: int = 0
    encoder_inputs: int = 0
    has_states: bool = False
    is_multimodal: bool = False
    encodes: bool = True

    def without_items(self) -> ModelShape:
        """The same where the profile run encodes nothing (``--skip-mm-profiling``)."""
        return replace(self, encodes=False)


@dataclass(frozen=True)
class Activation:
    """What a step takes, in bytes.

    Attributes:
        kept: What the profile run leaves behind: workspaces.
        encoder: Peak of the encoder above the start.
        forward: Peak of the forward pass.
        sampler: Peak of the sampler, 0 where the stage is not the last.
    """

    kept: int
    encoder: int
    forward: int
    sampler: int

    @property
    def peak(self) -> int:
        """The most of all phases, with what is kept."""
        return max(self.kept, self.encoder, self.forward, self.sampler)

    @property
    def ruled_by(self) -> str:
        """The phase that takes the most."""
        phases = {"encoder": self.encoder, "forward": self.forward, "sampler": self.sampler}
        return max(phases, key=lambda name: phases[name])


def activation(
    shape: ModelShape,
    *,
    tokens: int,
    sequences: int,
    tensor_parallel_size: int = 1,
    itemsize: int = 2,
    is_last_stage: bool = True,
    is_first_stage: bool = True,
    capability: tuple[int, int] | None = None,
    version: tuple[int, int] = (0, 33),
) -> Activation:
    """The phases of the profile run.

    Args:
        shape: The model's sizes.
        tokens: Tokens of a step.
        sequences: Sequences of a step.
        tensor_parallel_size: TP ranks.
        itemsize: Bytes of an element of the model's dtype.
        is_last_stage: Whether the rank samples.
        is_first_stage: Whether the rank encodes.
        capability: The GPU's compute capability, or None.
        version: vLLM's version.
    """
    sequences = min(sequences, tokens)
    kept = _CUBLAS_BYTES[capability is None or capability >= (9, 0)]
    workspace = _expert_workspace(shape, tokens, tensor_parallel_size, itemsize)
    if shape.indexer is not None:
        workspace = max(workspace, shape.indexer.workspace_bytes(tokens))
    kept += workspace
    is_v2 = has_v2_runner(shape, version)
    if not is_v2 and is_last_stage:
        # The V1 runner's sampler leaves a segment behind where it is too large to be split.
        left = sequences * shape.vocabulary // 2
        kept += left if left >= 20 * MIB else 0
    items = 0
    if shape.is_multimodal and shape.encodes and is_first_stage:
        items = _item_tokens(shape, tokens)
    outputs = items * shape.hidden * itemsize
    if not is_v2:
        # The V1 runner holds the items themselves, too, to the end of its profile run.
        outputs += items * shape.encoder_inputs * itemsize
    state = tokens * shape.hidden * itemsize
    sampler = drafting = 0
    if is_last_stage:
        sampled = sequences * shape.hidden * itemsize
        if not is_v2:
            sampled *= 2
        is_whole = not is_v2 or version >= _WHOLE_SAMPLER
        logits = sequences * shape.vocabulary
        logits *= _SAMPLER_BYTES_PER_LOGIT if is_whole else itemsize
        sampler = kept + outputs + logits + state + sampled
        if shape.has_mtp:  # the model's own states, and the logits of drafts
            drafting = state + sequences * shape.vocabulary * itemsize
    forward = _forward_bytes(shape, tokens, tensor_parallel_size, itemsize)
    return Activation(
        kept=kept,
        encoder=kept + outputs + items * shape.encoder_bytes_per_token,
        forward=kept + outputs + forward + drafting,
        sampler=sampler,
    )


def has_v2_runner(shape: ModelShape, version: tuple[int, int]) -> bool:
    """Whether a version runs a model by its V2 model runner."""
    is_dense = not (shape.experts_per_token or shape.has_states)
    return version >= (_V2_OF_DENSE if is_dense else _V2_OF_ALL)


def _item_tokens(shape: ModelShape, tokens: int) -> int:
    """Tokens of all the items that fill a step: whole ones, and one at least."""
    each = shape.encoder_item_tokens or 1
    return max(tokens // each, 1) * each


def _expert_workspace(shape: ModelShape, tokens: int, ranks: int, itemsize: int) -> int:
    """Both workspaces of fused experts, which grow to what a step needs and stay.

    Mirrors vllm/model_executor/layers/fused_moe/experts/triton_moe.py::TritonExperts
    .workspace_shapes (0.33).
    """
    if not shape.experts_per_token or shape.is_packed:
        return 0
    width = shape.expert_width // ranks
    inner = 2 * width if shape.gated else width
    elements = max(width, shape.hidden) + max(inner, shape.hidden)
    return tokens * shape.experts_per_token * elements * itemsize


def _forward_bytes(shape: ModelShape, tokens: int, ranks: int, itemsize: int) -> int:
    """What lives at once at the worst place of a layer."""
    step = _forward_elements(shape, tokens, ranks) * itemsize
    if shape.indexer is not None:
        step = max(step, shape.indexer.step_bytes(tokens, ranks, itemsize))
    return step


def _forward_elements(shape: ModelShape, tokens: int, ranks: int) -> int:
    hidden, width = shape.hidden, max(shape.mlp, shape.shared_width) // ranks
    normed = _WIDE_NORM * hidden if shape.has_wide_norm else 0
    states = 5 * hidden + max(shape.attention // ranks, width if ranks > 1 else 0)
    # What is kept is kept before and after it is summed over the ranks.
    kept = 3 + shape.extra_states + (shape.extra_states > 0 and ranks > 1)
    dense = kept * hidden + (3 if shape.gated else 2) * width
    routed = 0
    if shape.experts_per_token:
        routed = 5 * hidden + (2 * hidden if shape.shared_width else 0)
        if shape.is_packed:
            # Residual, attention's output, its norm and the sum of experts, and a token's experts.
            spread = shape.experts_per_token
            routed = 4 * hidden + spread * (hidden + shape.expert_width // ranks)
    latent = 0
    if shape.latent_width:
        unpacked = _CACHED_CHUNK_TOKENS * shape.latent_width // ranks
        latent = unpacked + tokens * (2 * hidden + shape.attention // ranks)
    # What layers look up is there as found and as added to the projected embedding.
    layer = max(states, dense, routed, normed) + 2 * shape.looked_up
    # States of three layers, the same in a row, what is made of them, and the drafter's MLP.
    drafting = 8 * hidden + 3 * shape.drafter_mlp // ranks if shape.drafter_mlp else 0
    return max(tokens * max(layer, drafting), latent)


def shape_of(read: ReadLayers, max_model_len: object = None) -> ModelShape:
    """A model's sizes; the longest request counts for sparse attention.

    Raises `ModelError` where the config lacks one.
    """
    text, layers = read.text, read.layers
    experts = num_experts(text) > 1
    keys = ("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_topk", "moe_k")
    per_token = max(largest(text.get(key)) for key in keys) if experts else 0
    vocabulary = text.get("padded_vocab_size") or text.size("vocab_size")
    width = largest(text.get("moe_intermediate_size")) or largest(text.get("intermediate_size"))
    shared = largest(text.get("shared_expert_intermediate_size"))
    shared = shared or largest(text.get("n_shared_experts")) * width
    mlp = mlp_width(text)
    if text.get("use_double_wide_mlp"):
        mlp *= 2
    looked_up = largest(text.get("hidden_size_per_layer_input")) * layers.num_hidden_layers
    quantization = (read.root.values.get("quantization_config") or {}).get("quant_method")
    bytes_per_token, item_tokens, inputs = _encoder(read.root)
    return ModelShape(
        hidden=text.size("hidden_size"),
        vocabulary=-(-vocabulary // 64) * 64,
        attention=_attention_elements(text, read),
        latent_width=_latent_width(text, read),
        indexer=_indexer(read, max_model_len),
        has_wide_norm=read.architecture.startswith(("Qwen3Next", "Qwen3_5")),
        mlp=0
        if experts and not layers.is_hybrid and not text.get("first_k_dense_replace")
        else mlp,
        gated=has_gate(read.architecture),
        extra_states=_extra_states(read.architecture),
        looked_up=looked_up if read.architecture.startswith("Gemma4") else 0,
        experts_per_token=per_token,
        expert_width=width,
        shared_width=shared if experts else 0,
        is_packed=quantization == "mxfp4",
        encoder_bytes_per_token=bytes_per_token,
        has_states=any(isinstance(layer, StateLayer) for layer in layers.layers),
        encoder_item_tokens=item_tokens,
        encoder_inputs=inputs,
        is_multimodal=layers.is_encoder_decoder
        or (is_multimodal(read.root, text) and "ForCausalLM" not in read.architecture),
    )


def _extra_states(architecture: str) -> int:
    """As recordings show: norms around the MLP (Gemma), a residual that is not in place (Qwen)."""
    if architecture.startswith(("Gemma2", "Gemma3F", "Qwen3_5F", "Whisper")):
        return 2
    return int(architecture.startswith(("Gemma4", "Lfm2For", "Qwen2ForCausal", "Qwen3ForCausal")))


def _attention_elements(text: ConfigView, read: ReadLayers) -> int:
    """Queries, keys and values, once in the model's dtype and once rotated."""
    most = 0
    for layer in read.layers.layers:
        if isinstance(layer, AttentionLayer):
            heads = text.num_heads + 2 * layer.num_kv_heads
            most = max(most, 2 * heads * layer.head_size)
        elif isinstance(layer, MLALayer):
            nope, rope = text.get("qk_nope_head_dim") or 0, text.get("qk_rope_head_dim") or 0
            value = text.get("v_head_dim") or 0
            most = max(most, text.num_heads * (2 * (nope + rope) + value))
        elif isinstance(layer, StateLayer):
            most = max(most, _state_elements(text, layer.mamba_type))
    return most


def _state_elements(text: ConfigView, mamba_type: str) -> int:
    """Elements of a token within a recurrent layer, over all ranks.

    Mamba 2 holds 2.7 times its input projection. A gated delta net holds its projection of two keys
    and two values, the same less a value, and then four values and two keys.
    """
    if mamba_type == "gdn_attn" and text.get("linear_num_key_heads"):
        keys = text.size("linear_num_key_heads") * text.size("linear_key_head_dim")
        values = text.size("linear_num_value_heads") * text.size("linear_value_head_dim")
        return 6 * keys + 7 * values
    if mamba_type == "mamba2":
        heads = text.get("mamba_num_heads") or text.get("mamba_n_heads") or 0
        head = text.get("mamba_head_dim") or text.get("mamba_d_head") or 0
        groups = text.get("n_groups") or text.get("mamba_n_groups") or 1
        state = text.get("ssm_state_size") or text.get("mamba_d_state") or 0
        return int(2.7 * (2 * heads * head + 2 * groups * state + heads))
    return 0


def _latent_width(text: ConfigView, read: ReadLayers) -> int:
    is_dense = any(
        isinstance(layer, MLALayer) and not layer.is_sparse for layer in read.layers.layers
    )
    width = (text.get("qk_nope_head_dim") or 0) + (text.get("v_head_dim") or 0)
    return text.num_heads * width if is_dense else 0


def _indexer(read: ReadLayers, max_model_len: object) -> Indexer | None:
    """Mirrors vllm/v1/attention/backends/mla/indexer.py::get_max_prefill_buffer_size (0.33)."""
    text, layers = read.text, read.layers.layers
    indexing = [x for x in layers if isinstance(x, MLALayer) and x.is_index_group_leader]
    is_compressed = read.architecture.startswith("DeepseekV4For")
    if not text.get("index_topk") or not (indexing or is_compressed):
        return None
    if not isinstance(max_model_len, int) or max_model_len < 1:
        max_model_len, _ = derived_max_model_len(read.root, text, read.root.model_type)
    hidden, topk = text.size("hidden_size"), text.size("index_topk")
    query, rope = text.get("q_lora_rank") or 0, text.size("qk_rope_head_dim", minimum=0)
    index_head = text.size("index_head_dim")
    index = text.size("index_n_heads") * index_head // 2  # queries of one byte
    if is_compressed:
        return _compressed_indexer(text, max_model_len, 2 * hidden + index + 2 * query)
    latent, factor = text.size("kv_lora_rank"), 5 if max_model_len <= 256 << 10 else 2
    head = 2 * latent + text.size("qk_nope_head_dim") + 2 * rope + text.size("v_head_dim")
    return Indexer(
        topk=topk,
        layers=len(indexing),
        gathered_bytes=max_model_len * 8 * factor * _INDEX_KEY_BYTES + _INDEX_TOPK_BYTES,
        gathered_bytes_per_token=0,
        replicated=3 * hidden + index + 2 * query + latent + rope,
        divided=text.num_heads * head,
    )


def _compressed_indexer(text: ConfigView, max_model_len: int, elements: int) -> Indexer:
    """Of DeepSeek-V4, whose heads of a rank are padded to 64 and whose residual has streams.

    Mirrors vllm/models/deepseek_v4/nvidia/flashmla.py (0.33).
    """
    head, window, topk = (text.size(k) for k in ("head_dim", "sliding_window", "index_topk"))
    chosen = -(-(topk + window) // 128) * 128 + 1
    streams = 2 * text.size("hc_mult") * text.size("hidden_size")
    compressed = 2 * 4 * (head + text.size("index_head_dim"))  # in float32
    return Indexer(
        topk=topk,
        layers=0,
        gathered_bytes=4 * (-(-max_model_len // 4) + window) * head * 2,
        gathered_bytes_per_token=4 * head * 2 + 4 * chosen,
        replicated=elements + 2 * 64 * head + streams + compressed + 2 * head,
        divided=0,
    )


def _encoder(root: ConfigView) -> tuple[int, int, int]:
    """Of a usual vision tower: bytes for a token it makes, tokens of an item, inputs of a token."""
    tower = tower_of(root)
    if tower is None:
        return 0, 0, 0
    values = root.values.get("vision_config")
    vision = ConfigView(values if isinstance(values, dict) else {}, "vision_config")
    per_item = root.get("mm_tokens_per_image") or root.get("image_seq_length") or 0
    if root.model_type.startswith(_ANY_RESOLUTION):
        per_item = _LARGEST_IMAGE
    patch, image = vision.optional_size("patch_size"), vision.optional_size("image_size")
    patches = 4 if tower.mergers else 1
    if per_item and patch and image:
        patches = (image // patch) ** 2 / per_item
    inputs = patches * 3 * (patch or 0) ** 2 * (vision.optional_size("temporal_patch_size") or 1)
    return int(patches * (2 * tower.width + 4 * tower.hidden) * 2), per_item, int(inputs)
