"""Layer shapes of further public language models and encoders of text, with the sizes in each source's config."""

from __future__ import annotations

from diode_collectors.problems.family_layers import (
    HUB,
    Family,
    attention,
    decoder,
    encoder,
    gated_mlp,
    linear,
    plain_decoder,
    scores_and_values,
)


def _config(repository: str) -> str:
    return f"{HUB}/{repository}/blob/main/config.json"


_DECODERS = (
    # name, repository, then the arguments of ``decoder``: hidden size, heads, heads of k and v, their size,
    # intermediate size, vocabulary
    ("llama3.2-1b", "meta-llama/Llama-3.2-1B", 2048, 32, 8, 64, 8192, 128256),
    ("llama3.2-3b", "meta-llama/Llama-3.2-3B", 3072, 24, 8, 128, 8192, 128256),
    ("llama2-13b", "meta-llama/Llama-2-13b-hf", 5120, 40, 40, 128, 13824, 32000),
    ("qwen3-4b", "Qwen/Qwen3-4B", 2560, 32, 8, 128, 9728, 151936),
    ("qwen3-8b", "Qwen/Qwen3-8B", 4096, 32, 8, 128, 12288, 151936),
    ("gemma2-2b", "google/gemma-2-2b", 2304, 8, 4, 256, 9216, 256000),
    ("gemma2-27b", "google/gemma-2-27b", 4608, 32, 16, 128, 36864, 256000),
    ("phi-4", "microsoft/phi-4", 5120, 40, 10, 128, 17920, 100352),
    ("mistral-nemo", "mistralai/Mistral-Nemo-Base-2407", 5120, 32, 8, 128, 14336, 131072),
    ("tinyllama-1.1b", "TinyLlama/TinyLlama_v1.1", 2048, 32, 4, 64, 5632, 32000),
    ("smollm2-135m", "HuggingFaceTB/SmolLM2-135M", 576, 9, 3, 64, 1536, 49152),
    ("smollm2-360m", "HuggingFaceTB/SmolLM2-360M", 960, 15, 5, 64, 2560, 49152),
    ("granite-3.0-8b", "ibm-granite/granite-3.0-8b-instruct", 4096, 32, 8, 128, 12800, 49155),
    ("minicpm-2b", "openbmb/MiniCPM-2B-sft-bf16", 2304, 36, 36, 64, 5760, 122753),
    ("yi-34b", "01-ai/Yi-34B", 7168, 56, 8, 128, 20480, 64000),
    ("olmo2-7b", "allenai/OLMo-2-1124-7B", 4096, 32, 32, 128, 11008, 100352),
    ("internlm2-7b", "internlm/internlm2-7b", 4096, 32, 8, 128, 14336, 92544),
    ("command-r", "CohereForAI/c4ai-command-r-v01", 8192, 64, 64, 128, 22528, 256000),
    ("qwen3-0.6b", "Qwen/Qwen3-0.6B", 1024, 16, 8, 128, 3072, 151936),
    ("qwen3-14b", "Qwen/Qwen3-14B", 5120, 40, 8, 128, 17408, 151936),
    ("gemma3-1b", "google/gemma-3-1b-pt", 1152, 4, 1, 256, 6912, 262144),
    ("gemma-7b", "google/gemma-7b", 3072, 16, 16, 256, 24576, 256000),
    ("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B", 2048, 32, 32, 64, 8192, 49152),
    ("mistral-small-24b", "mistralai/Mistral-Small-24B-Base-2501", 5120, 32, 8, 128, 32768, 131072),
    ("codellama-34b", "codellama/CodeLlama-34b-hf", 8192, 64, 8, 128, 22016, 32000),
    ("granite-3.1-2b", "ibm-granite/granite-3.1-2b-instruct", 2048, 32, 8, 64, 8192, 49155),
    ("danube3-4b", "h2oai/h2o-danube3-4b-base", 3840, 32, 8, 120, 10240, 32000),
)
_DECODERS_WITH_BIAS = (
    ("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B", 896, 14, 2, 64, 4864, 151936),
    ("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B", 1536, 12, 2, 128, 8960, 151936),
    ("stablelm2-1.6b", "stabilityai/stablelm-2-1_6b", 2048, 32, 32, 64, 5632, 100352),
    ("qwen2.5-3b", "Qwen/Qwen2.5-3B", 2048, 16, 2, 128, 11008, 151936),
    ("qwen2.5-14b", "Qwen/Qwen2.5-14B", 5120, 40, 8, 128, 13824, 152064),
)
_PLAIN_DECODERS = (
    # name, repository, then the arguments of ``plain_decoder``: hidden size, that of q, k and v together,
    # intermediate size, vocabulary
    ("phi-2", "microsoft/phi-2", 2560, 7680, 10240, 51200),
    ("starcoder2-7b", "bigcode/starcoder2-7b", 4608, 5632, 18432, 49152),
    ("opt-1.3b", "facebook/opt-1.3b", 2048, 6144, 8192, 50272),
    ("bloom-560m", "bigscience/bloom-560m", 1024, 3072, 4096, 250880),
    ("gpt-neox-20b", "EleutherAI/gpt-neox-20b", 6144, 18432, 24576, 50432),
    ("gpt-j-6b", "EleutherAI/gpt-j-6b", 4096, 12288, 16384, 50400),
    ("starcoder2-3b", "bigcode/starcoder2-3b", 3072, 3584, 12288, 49152),
    ("opt-6.7b", "facebook/opt-6.7b", 4096, 12288, 16384, 50272),
    ("pythia-410m", "EleutherAI/pythia-410m", 1024, 3072, 4096, 50304),
    ("biogpt", "microsoft/biogpt", 1024, 3072, 4096, 42384),
)
_ENCODERS = (
    # name, repository, hidden size, intermediate size, vocabulary
    ("bert-base", "google-bert/bert-base-uncased", 768, 3072, 30522),
    ("roberta-base", "FacebookAI/roberta-base", 768, 3072, 50265),
    ("xlm-roberta-large", "FacebookAI/xlm-roberta-large", 1024, 4096, 250002),
    ("deberta-v3-base", "microsoft/deberta-v3-base", 768, 3072, 128100),
    ("minilm-l6", "sentence-transformers/all-MiniLM-L6-v2", 384, 1536, 30522),
    ("bart-large", "facebook/bart-large", 1024, 4096, 50265),
    ("nllb-600m", "facebook/nllb-200-distilled-600M", 1024, 4096, 256206),
    ("esm2-650m", "facebook/esm2_t33_650M_UR50D", 1280, 5120, 33),
    ("esm2-150m", "facebook/esm2_t30_150M_UR50D", 640, 2560, 33),
    ("camembert-base", "almanach/camembert-base", 768, 3072, 32005),
    ("deberta-v3-large", "microsoft/deberta-v3-large", 1024, 4096, 128100),
    ("mbart-large-50", "facebook/mbart-large-50", 1024, 4096, 250054),
    ("protbert", "Rostlab/prot_bert", 1024, 4096, 30),
)

LANGUAGE_FAMILIES = (
    *(Family(name, _config(repository), decoder(*sizes)) for name, repository, *sizes in _DECODERS),
    *(Family(name, _config(repo), decoder(*sizes, qkv_bias=True)) for name, repo, *sizes in _DECODERS_WITH_BIAS),
    *(Family(name, _config(repository), plain_decoder(*sizes)) for name, repository, *sizes in _PLAIN_DECODERS),
    *(
        Family(name, _config(repository), (*encoder(hidden, wide), linear("vocabulary", words, hidden, bias=True)))
        for name, repository, hidden, wide, words in _ENCODERS
    ),
    Family(
        "falcon-7b",
        _config("tiiuae/falcon-7b"),
        (
            linear("qkv", 4672, 4544),
            linear("dense", 4544, 4544),
            linear("up", 18176, 4544),
            linear("down", 4544, 18176),
            linear("lm_head", 65024, 4544),
        ),
    ),
    Family(
        "gpt-oss-20b",
        _config("openai/gpt-oss-20b"),
        (
            linear("qkv", 5120, 2880, bias=True),
            linear("o", 2880, 4096, bias=True),
            linear("router", 32, 2880, bias=True),
            linear("expert_gate_up", 5760, 2880, bias=True),
            linear("expert_down", 2880, 2880, bias=True),
            linear("lm_head", 201088, 2880),
        ),
    ),
    Family(
        "qwen3-30b-a3b",
        _config("Qwen/Qwen3-30B-A3B"),
        (
            *attention(2048, 32, 4, 128),
            linear("router", 128, 2048),
            *gated_mlp(2048, 768, "expert_"),
            linear("lm_head", 151936, 2048),
        ),
    ),
    Family(
        "gpt2",
        _config("openai-community/gpt2"),
        (
            *(layer.as_conv1d() for layer in encoder(768, 3072)),
            linear("lm_head", 50257, 768),
        ),
    ),
    Family(
        "gpt2-medium",
        _config("openai-community/gpt2-medium"),
        (
            *(layer.as_conv1d() for layer in encoder(1024, 4096)),
            linear("lm_head", 50257, 1024),
        ),
    ),
    Family(
        "rwkv4-169m",
        _config("RWKV/rwkv-4-169m-pile"),
        (
            linear("time_mix", 768, 768),
            linear("channel_key", 3072, 768),
            linear("channel_value", 768, 3072),
            linear("head", 50277, 768),
        ),
    ),
    Family(
        "mamba-130m",
        _config("state-spaces/mamba-130m-hf"),
        (
            linear("in_proj", 3072, 768),
            linear("x_proj", 80, 1536),
            linear("dt_proj", 1536, 48, bias=True),
            linear("out_proj", 768, 1536),
            linear("lm_head", 50280, 768),
        ),
    ),
    Family(
        "mamba-2.8b",
        _config("state-spaces/mamba-2.8b-hf"),
        (
            linear("in_proj", 10240, 2560),
            linear("x_proj", 192, 5120),
            linear("dt_proj", 5120, 160, bias=True),
            linear("out_proj", 2560, 5120),
            linear("lm_head", 50280, 2560),
        ),
    ),
    Family(
        "t5-base",
        _config("google-t5/t5-base"),
        (
            *attention(768, 12, 12, 64),
            linear("up", 3072, 768),
            linear("down", 768, 3072),
            linear("lm_head", 32128, 768),
            *scores_and_values(64, 213, 96),
        ),
    ),
    Family(
        "mt5-small",
        _config("google/mt5-small"),
        (
            *attention(512, 6, 6, 64),
            *gated_mlp(512, 1024),
            linear("lm_head", 250112, 512),
            *scores_and_values(64, 93, 48),
        ),
    ),
    Family(
        "byt5-small",
        _config("google/byt5-small"),
        (
            *attention(1472, 6, 6, 64),
            *gated_mlp(1472, 3584),
            linear("lm_head", 384, 1472),
            *scores_and_values(64, 511, 24),
        ),
    ),
    Family(
        "awd-lstm",
        "https://arxiv.org/abs/1708.02182",
        (
            linear("input", 4600, 400, bias=True),
            linear("hidden", 4600, 1150, bias=True),
            linear("last_input", 1600, 1150, bias=True),
            linear("last_hidden", 1600, 400, bias=True),
            linear("decoder", 33278, 400, bias=True),
        ),
    ),
)
