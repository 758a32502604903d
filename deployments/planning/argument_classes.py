"""Three classes of arguments and environment variables: ours, plain, code-loading.

*Ours* are set from the plan (address, port, devices, memory, identity, logging): refused among the extras,
with the field to use instead. *Plain* ones tune the engine and were looked at one by one. Everything else
counts as *code-loading*: what runs code, opens other files or sends data elsewhere, and every name that
nobody has looked at. Those need a permission of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from deployments.planning.flags import base_flag, known_flags

if TYPE_CHECKING:
    from deployments.planning.spec import ArgumentValue


class ArgumentClass(StrEnum):
    OURS = "ours"
    PLAIN = "plain"
    CODE_LOADING = "code_loading"


@dataclass(frozen=True, kw_only=True)
class Classified:
    """`reason` completes "…, because it"; for ours it says what to do instead."""

    kind: ArgumentClass
    reason: str


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OURS = {
    "--model": "set the model field",
    "--model-tag": "set the model field",
    "--served-model-name": "set the served_model_name field",
    "--host": "set the address field",
    "--port": "set the port field",
    "--uds": "instances listen on a port here",
    "--api-key": "name a credential for VLLM_API_KEY below secrets; every user of the host can read arguments",
    "--tensor-parallel-size": "set the tensor_parallel field",
    "--pipeline-parallel-size": "set the pipeline_parallel field",
    "--device-ids": "set the devices field",
    "--device": "set the devices field",
    "--gpu-memory-utilization": "set the gpu_memory_utilization field",
    "--device-memory-utilization": "set the gpu_memory_utilization field",
    "--kv-cache-memory-bytes": "set the kv_cache_memory_bytes field",
    "--max-model-len": "set the max_model_len field",
    "--max-num-seqs": "set the max_num_seqs field",
    "--dtype": "set the dtype field",
    "--task": "set the task field",
    "--runner": "set the task field",
    "--convert": "set the task field",
    "--nnodes": "one instance runs on one host here",
    "--node-rank": "one instance runs on one host here",
    "--master-addr": "one instance runs on one host here",
    "--master-port": "one instance runs on one host here",
    "--headless": "one instance runs on one host here",
    "--data-parallel-size": "raise the instances field instead",
    "--api-server-count": "raise the instances field instead",
    "--root-path": "the balancer's path prefix is kept by the front door",
    "--ssl-keyfile": "the front door ends TLS",
    "--ssl-certfile": "the front door ends TLS",
    "--ssl-ca-certs": "the front door ends TLS",
    "--ssl-cert-reqs": "the front door ends TLS",
    "--ssl-ciphers": "the front door ends TLS",
    "--enable-ssl-refresh": "the front door ends TLS",
    "--grpc": "readiness is proved over HTTP here",
    "--grpc-port": "readiness is proved over HTTP here",
    "--log-level": "the phases of a start are read from the log, so its level is fixed",
    "--log-config-file": "the phases of a start are read from the log, so its form is fixed",
    "--logging-config": "the phases of a start are read from the log, so its form is fixed",
    "--shutdown-timeout": "the stop order sets how long requests may finish",
}
_OURS_PREFIXES = ("--data-parallel-",)

_PLAIN = _words(
    """--async-scheduling --attention-backend --block-size --calculate-kv-scales
    --chat-template-content-format --cpu-offload-gb --cudagraph-capture-sizes --cudagraph-metrics
    --cuda-graph-sizes --decode-context-parallel-size --default-chat-template-kwargs
    --disable-access-log-for-endpoints --disable-cascade-attn --disable-chunked-mm-input
    --disable-custom-all-reduce --disable-fastapi-docs --disable-hybrid-kv-cache-manager
    --disable-log-requests --disable-log-stats --disable-sliding-window --disable-uvicorn-access-log
    --disable-frontend-multiprocessing --disable-async-output-proc --distributed-timeout-seconds
    --cpu-distributed-timeout-seconds --enable-auto-tool-choice --enable-chunked-prefill
    --enable-expert-parallel --enable-force-include-usage --enable-log-outputs --enable-log-requests
    --enable-prefix-caching --enable-prompt-tokens-details --enable-request-id-headers
    --enable-server-load-tracking --enable-sleep-mode --enable-eplb --enforce-eager --generation-config
    --guided-decoding-backend --ignore-patterns --kv-cache-dtype --kv-cache-metrics --kv-sharing-fast-prefill
    --limit-mm-per-prompt --load-format --long-prefill-token-threshold --max-cudagraph-capture-size
    --max-log-len --max-logprobs --max-long-partial-prefills --max-num-batched-tokens
    --max-num-partial-prefills --max-num-queued-reqs --max-num-queued-tokens --max-parallel-loading-workers
    --max-seq-len-to-capture --mm-processor-cache-gb --model-impl --multi-step-stream-outputs
    --num-gpu-blocks-override --num-scheduler-steps --numa-bind --optimization-level
    --override-generation-config --performance-mode --pooler-config --prefill-context-parallel-size
    --prefix-caching-hash-algo --quantization --reasoning-parser --response-role --return-tokens-as-token-ids
    --safetensors-load-strategy --scheduling-policy --seed --show-hidden-metrics-for-version
    --skip-mm-profiling --sse-keep-alive-interval --stream-interval --swap-space --tokenizer-mode
    --tool-call-parser --uvicorn-log-level --use-v2-block-manager --distributed-executor-backend
    --compilation-config --speculative-config --structured-outputs-config --worker-use-ray --engine-use-ray
    --rope-scaling --rope-theta --lora-extra-vocab-size
    """
)
_LOADS = {
    "--trust-remote-code": "runs Python files that lie beside the model",
    "--config": "reads further arguments from a file that is not in the plan",
    "--middleware": "imports Python code into the server",
    "--tool-parser-plugin": "imports Python code into the server",
    "--reasoning-parser-plugin": "imports Python code into the server",
    "--io-processor-plugin": "imports Python code into the server",
    "--logits-processors": "imports Python code into the engine",
    "--logits-processor-pattern": "lets clients name code to import",
    "--worker-cls": "imports Python code into the workers",
    "--worker-extension-cls": "imports Python code into the workers",
    "--scheduler-cls": "imports Python code into the engine",
    "--kv-transfer-config": "can import a connector and sends the KV cache to other processes",
    "--ec-transfer-config": "can import a connector and sends data to other processes",
    "--additional-config": "is passed to plugins",
    "--model-loader-extra-config": "can load weights from elsewhere",
    "--lora-modules": "loads weights from other directories",
    "--tokenizer": "loads files from another directory",
    "--hf-config-path": "loads files from another directory",
    "--code-revision": "chooses code to download",
    "--chat-template": "reads a template file that clients' prompts pass through",
    "--hf-overrides": "can change which class the model is loaded with",
    "--otlp-traces-endpoint": "sends data about requests to another host",
    "--allowed-local-media-path": "lets clients read files of the host",
    "--allowed-media-domains": "lets clients make the host fetch addresses",
    "--download-dir": "writes to another directory",
    "--enable-lora": "loads weights from other directories",
}
# Values that keep a flag plain; any other value can name a class to import or a place to load from.
_PLAIN_VALUES = {
    "--distributed-executor-backend": frozenset({"mp", "uni", "ray"}),
    "--load-format": frozenset(
        {
            "auto",
            "safetensors",
            "hf",
            "dummy",
            "fastsafetensors",
            "sharded_state",
            "mistral",
            "gguf",
            "bitsandbytes",
        }
    ),
    "--tokenizer-mode": frozenset({"auto", "hf", "slow", "mistral", "deepseek_v32"}),
    "--model-impl": frozenset({"auto", "vllm", "transformers"}),
    "--generation-config": frozenset({"auto", "vllm"}),
    "--speculative-config.method": frozenset({"ngram", "suffix", "mtp", "ngram_gpu"}),
}
_COMPILATION_PLAIN = re.compile(r'[\s{}\[\]",:\w-]*')
_COMPILATION_LOADS = re.compile(r"backend|pass|module|cache_dir|splitting|dump|path", re.IGNORECASE)


def classify_argument(*, flag: str, value: ArgumentValue) -> Classified:
    """Say what an extra argument is. `flag` is a long name as `normalise_flag` gives it."""
    base = base_flag(flag)
    ours = _OURS.get(base) or ("raise the instances field instead" if base.startswith(_OURS_PREFIXES) else None)
    if ours is None and base not in known_flags():
        # argparse takes "--por" for "--port": a beginning of one of ours is one of ours.
        ours = next((reason for name, reason in _OURS.items() if len(base) > 2 and name.startswith(base)), None)
    if ours is not None:
        return Classified(kind=ArgumentClass.OURS, reason=ours)
    if base in _LOADS:
        return Classified(kind=ArgumentClass.CODE_LOADING, reason=_LOADS[base])
    if base not in _PLAIN:
        return Classified(kind=ArgumentClass.CODE_LOADING, reason="is not among the arguments known to be harmless")
    if not _has_plain_value(flag=flag, base=base, value=value):
        return Classified(
            kind=ArgumentClass.CODE_LOADING, reason="can name code or a place to load from, with this value"
        )
    return Classified(kind=ArgumentClass.PLAIN, reason="")


def _has_plain_value(*, flag: str, base: str, value: ArgumentValue) -> bool:
    text = value if isinstance(value, str) else " ".join(value) if isinstance(value, tuple) else ""
    if base == "--speculative-config":
        # A draft model is another directory of weights; the methods without one are named.
        if "." in flag:
            allowed = _PLAIN_VALUES.get(flag)
            return text in allowed if allowed is not None else text.isdigit()
        return '"model"' not in text and '"method"' in text and "/" not in text
    if base in ("--compilation-config", "--structured-outputs-config"):
        return _COMPILATION_PLAIN.fullmatch(text) is not None and _COMPILATION_LOADS.search(f"{flag} {text}") is None
    allowed = _PLAIN_VALUES.get(base)
    return allowed is None or text in allowed


_OURS_VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "set the devices field",
    "NVIDIA_VISIBLE_DEVICES": "set the devices field",
    "CUDA_DEVICE_ORDER": "devices are named by UUID",
    "VLLM_PORT": "it is an internal port that must differ per instance; vLLM chooses it",
    "VLLM_API_KEY": "name a credential for it below secrets",
    "VLLM_HOST_IP": "one instance runs on one host here",
    "VLLM_CPU_KVCACHE_SPACE": "set the kv_cache_memory_bytes field",
    "VLLM_CACHE_ROOT": "the plan decides which starts share a cache",
    "VLLM_RPC_BASE_PATH": "each launch has a directory of its own",
    "VLLM_PROCESS_NAME_PREFIX": "it marks the processes that are ours",
    "VLLM_CONFIGURE_LOGGING": "the phases of a start are read from the log",
    "VLLM_NO_USAGE_STATS": "it is always set",
    "VLLM_DO_NOT_TRACK": "it is always set",
    "VLLM_DISABLE_LOG_LOGO": "it is always set",
    "HF_HUB_OFFLINE": "it is always set: instances never download",
    "SPT_NOENV": "it keeps the mark of our processes readable",
    "NO_COLOR": "it is always set",
    "TMPDIR": "each launch has a directory of its own",
    "USER": "it is the account's",
    "LOGNAME": "it is the account's",
}
_OURS_VARIABLE_PREFIXES = ("FLEETADMIN_", "VLLM_LOGGING_")

_PLAIN_VARIABLES = _words(
    """NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_SOCKET_IFNAME NCCL_SOCKET_FAMILY NCCL_SOCKET_NTHREADS
    NCCL_NSOCKS_PERTHREAD NCCL_IB_HCA NCCL_IB_DISABLE NCCL_IB_GID_INDEX NCCL_IB_TIMEOUT NCCL_IB_RETRY_CNT
    NCCL_IB_SL NCCL_IB_TC NCCL_IB_QPS_PER_CONNECTION NCCL_IB_CUDA_SUPPORT NCCL_IB_PCI_RELAXED_ORDERING
    NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_P2P_DIRECT_DISABLE NCCL_SHM_DISABLE NCCL_NET_GDR_LEVEL
    NCCL_NET_GDR_READ NCCL_CROSS_NIC NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_NVLS_ENABLE NCCL_ALGO
    NCCL_PROTO NCCL_BUFFSIZE NCCL_NTHREADS NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MAX_CTAS
    NCCL_LAUNCH_MODE NCCL_TIMEOUT NCCL_BLOCKING_WAIT NCCL_CHECKS_DISABLE NCCL_GRAPH_REGISTER
    NCCL_IGNORE_CPU_AFFINITY NCCL_COLLNET_ENABLE TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_ASYNC_ERROR_HANDLING
    TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCH_NCCL_ENABLE_MONITORING
    GLOO_SOCKET_IFNAME CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING CUDA_DEVICE_MAX_CONNECTIONS
    PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF OMP_NUM_THREADS MKL_NUM_THREADS TOKENIZERS_PARALLELISM
    TORCHINDUCTOR_COMPILE_THREADS VLLM_ALLOW_LONG_MAX_MODEL_LEN VLLM_ATTENTION_BACKEND
    VLLM_CPU_OMP_THREADS_BIND VLLM_CPU_NUM_OF_RESERVED_CPU VLLM_ENGINE_READY_TIMEOUT_S
    VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE VLLM_HTTP_TIMEOUT_KEEP_ALIVE
    VLLM_KEEP_ALIVE_ON_ENGINE_DEATH VLLM_HTTP_MAX_REQUEST_BODY_SIZE VLLM_LOG_STATS_INTERVAL VLLM_LOOPBACK_IP
    VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS VLLM_PP_LAYER_PARTITION VLLM_RINGBUFFER_WARNING_INTERVAL
    VLLM_RPC_TIMEOUT VLLM_ENGINE_ITERATION_TIMEOUT_S VLLM_SKIP_MODEL_NAME_VALIDATION VLLM_SLEEP_WHEN_IDLE
    VLLM_USE_V1 VLLM_USE_DEEP_GEMM VLLM_USE_FLASHINFER_SAMPLER VLLM_WORKER_MULTIPROC_METHOD
    VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS VLLM_USE_TRITON_FLASH_ATTN VLLM_ALLREDUCE_USE_SYMM_MEM
    VLLM_MXFP4_USE_MARLIN TZ LANG LC_ALL
    """
)
_LOADS_VARIABLES = {
    "LD_PRELOAD": "loads a library into every process",
    "LD_LIBRARY_PATH": "decides which libraries are loaded",
    "LD_AUDIT": "loads a library into every process",
    "PATH": "decides which programs are run",
    "HOME": "decides which settings and caches are read",
    "VLLM_PLUGINS": "chooses Python code to load",
    "VLLM_SERVER_DEV_MODE": "opens endpoints that run code in the workers",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "lets pickled objects run code",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "lets clients load weights",
    "VLLM_USE_MODELSCOPE": "downloads models from another place",
    "HF_ENDPOINT": "downloads models from another place",
    "HF_HOME": "decides which cached code is run",
    "NCCL_NET_PLUGIN": "loads a library into every worker",
    "NCCL_TUNER_PLUGIN": "loads a library into every worker",
    "NCCL_PROFILER_PLUGIN": "loads a library into every worker",
    "NCCL_CONF_FILE": "reads further settings from a file",
}
# Credentials may be given under these names without the permission for unknown variables.
_PLAIN_SECRETS = frozenset({"VLLM_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})


def classify_variable(*, name: str, is_secret: bool = False) -> Classified:
    """Say what an environment variable of a deployment is."""
    if is_secret and name in _PLAIN_SECRETS:
        return Classified(kind=ArgumentClass.PLAIN, reason="")
    ours = _OURS_VARIABLES.get(name) or (
        "it is set for every launch" if name.startswith(_OURS_VARIABLE_PREFIXES) else None
    )
    if ours is not None:
        return Classified(kind=ArgumentClass.OURS, reason=ours)
    if name in _PLAIN_VARIABLES:
        return Classified(kind=ArgumentClass.PLAIN, reason="")
    if name.startswith("PYTHON"):
        return Classified(kind=ArgumentClass.CODE_LOADING, reason="changes what Python loads")
    reason = _LOADS_VARIABLES.get(name, "is not among the variables known to be harmless")
    return Classified(kind=ArgumentClass.CODE_LOADING, reason=reason)
