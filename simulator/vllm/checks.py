"""The checks of vLLM's start and the words of their failures. Pure.

Texts: the first four recorded from vLLM 0.32.0 (CPU build), those of memory from its source (0.25 to 0.32).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.vllm.model import BLOCK_SIZE, ModelShape, format_gib

if TYPE_CHECKING:
    from simulator.vllm.arguments import ServeArguments


class StartError(Exception):
    """The start ends here.

    `where`: `api` (before there is an engine), `engine` (each rank), `core` (EngineCore itself);
    `kind`: the exception's class.
    """

    def __init__(self, text: str, *, where: str, kind: str = "ValueError", function: str = "init_device") -> None:
        super().__init__(text)
        self.text = text
        self.where = where
        self.kind = kind
        self.function = function


def refuse_missing_model(path: str) -> StartError:
    return StartError(
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
        f"'namespace/repo_name': '{path}'. Use `repo_type` argument if needed.",
        where="api",
        function="validate_repo_id",
    )


def refuse_rendezvous(*, port: int) -> StartError:
    """As torch 2.9 says it below vLLM 0.28 (vLLM issue 39015)."""
    return StartError(
        "The server socket has failed to listen on any local network address. "
        f"port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        where="engine",
        kind="torch.distributed.DistNetworkError",
        function="init_process_group",
    )


def refuse_full_disk() -> StartError:
    return StartError("[Errno 28] No space left on device", where="engine", kind="OSError", function="save_to_file")


def refuse_offline_hub() -> StartError:
    return StartError(
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot "
        "folder for the specified "
        "revision on the local disk and outgoing traffic has been disabled. To enable repo look-ups and "
        "downloads "
        "online, pass 'local_files_only=False' as input.",
        where="api",
        function="snapshot_download",
    )


def refuse_bad_config(path: str) -> StartError:
    return StartError(
        f"OSError: It looks like the config file at '{path}/config.json' is not a valid JSON file.",
        where="api",
        function="get_config_dict",
    )


def _validation_error(model: str, text: str) -> StartError:
    return StartError(
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {model}\n"
        f"  Value error, {text} [type=value_error, input_value=ArgsKwargs((), {{'model_co... "
        f"'shutdown_timeout': 0}}), "
        "input_type=ArgsKwargs]\n"
        "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
        where="api",
        function="__init__",
    )


def check_length(shape: ModelShape, arguments: ServeArguments) -> StartError | None:
    asked = arguments.max_model_len
    if asked is None or asked <= shape.max_positions:
        return None
    return _validation_error(
        "ModelConfig",
        f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
        f"(max_position_embeddings={float(shape.max_positions)} or model_max_length=None in model's "
        f"config.json). To allow "
        "overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. "
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN must be "
        "used with extreme caution. If the model uses relative position encoding (RoPE), positions exceeding "
        "derived_max_model_len lead to nan. If the model uses absolute position encoding, positions "
        "exceeding "
        "derived_max_model_len will cause a CUDA array out-of-bounds error.",
    )


def check_parallel(shape: ModelShape, arguments: ServeArguments, *, gpus: int | None) -> StartError | None:
    """`gpus` None on a machine without: the CPU back end takes any number of workers."""
    if shape.heads % arguments.tensor_parallel:
        return _validation_error(
            "VllmConfig",
            f"Total number of attention heads ({shape.heads}) must be divisible by tensor parallel size "
            f"({arguments.tensor_parallel}).",
        )
    if gpus is not None and arguments.world_size > gpus:
        return _validation_error(
            "VllmConfig",
            f"World size ({arguments.world_size}) is larger than the number of available GPUs ({gpus}) in "
            f"this node. If this "
            "is intentional and you are using: - ray, set '--distributed-executor-backend ray'. - "
            "multiprocessing, set "
            "'--nnodes' appropriately.",
        )
    return None


def check_free_memory(*, device: int, free: int, total: int, requested: int, utilization: float) -> StartError | None:
    """Before anything is loaded: bytes free on the card against total x utilisation."""
    if free >= requested:
        return None
    return StartError(
        f"Free memory on device cuda:{device} ({format_gib(free)}/{format_gib(total)} GiB) on startup is "
        f"less than desired GPU "
        f"memory utilization ({utilization}, {format_gib(requested)} GiB). Decrease GPU memory utilization "
        f"or reduce GPU "
        "memory used by other processes.",
        where="engine",
        function="request_memory",
    )


def check_profiling(*, free_before: int, free_after: int) -> StartError | None:
    """Somebody else gave memory back while this one profiled: vLLM asserts."""
    if free_after <= free_before:
        return None
    return StartError(
        f"Error in memory profiling. Initial free memory {format_gib(free_before)} GiB, current free memory "
        f"{format_gib(free_after)} GiB. This happens when other processes sharing the same container "
        f"release GPU memory "
        "while vLLM is profiling during initialization. To fix this, ensure consistent GPU memory "
        "allocation or isolate "
        "vLLM in its own container.",
        where="engine",
        kind="AssertionError",
        function="determine_available_memory",
    )


def check_cpu_memory(*, available: int, total: int, requested: int, utilization: float) -> StartError | None:
    """CPU back end of 0.32: the utilisation is a share of RAM there."""
    if requested <= available:
        return None
    return StartError(
        f"Available memory on node 0 ({format_gib(available)}/{format_gib(total)} GiB) on startup is less "
        f"than desired CPU memory utilization ({utilization}, {format_gib(requested)} GiB). "
        "On the CPU backend, the `--gpu-memory-utilization` flag controls the fraction "
        "of CPU memory reserved (despite its name). To "
        "resolve: decrease `--gpu-memory-utilization` (e.g. `--gpu-memory-utilization 0.5`) or reduce CPU "
        "memory used by other processes.",
        where="engine",
        function="__init__",
    )


def check_cpu_cache(*, available: int, total: int, wanted: int, requested: int | None) -> StartError | None:
    """CPU back end of 0.32: `wanted` bytes of KV cache, explicit (`requested` None) "
    "or the rest of a share.
    """
    if 0 < wanted <= available:
        return None
    head = (
        f"Available memory on node 0 ({format_gib(available)}/{format_gib(total)} GiB) on kv cache "
        "allocation is less than requested memory for kv "
    )
    if requested is None:
        tail = (
            f"({format_gib(wanted)} GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, "
            "or reduce CPU memory used by other processes."
        )
    else:
        tail = f"({format_gib(wanted)}/{format_gib(requested)} GiB). Reduce CPU memory used by other processes."
    return StartError(head + tail, where="engine", function="determine_available_memory")


def check_kv_cache(*, available: int, token_bytes: int, max_model_len: int) -> StartError | None:
    if available <= 0:
        return StartError(
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine. "
            "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
            where="core",
            function="check_enough_kv_cache_memory",
        )
    needed = max_model_len * token_bytes
    if needed <= available:
        return None
    longest = available // (token_bytes * BLOCK_SIZE) * BLOCK_SIZE
    return StartError(
        f"To serve at least one request with the model's max seq len ({max_model_len}), "
        f"({format_gib(needed)} GiB KV cache is "
        f"needed, which is larger than the available KV cache memory ({format_gib(available)} GiB). Based "
        f"on the available "
        f"memory, the estimated maximum model length is {longest}. Try increasing `gpu_memory_utilization` "
        f"or decreasing "
        "`max_model_len` when initializing the engine.",
        where="core",
        function="check_enough_kv_cache_memory",
    )


def refuse_out_of_memory(*, wanted: int, free: int, total: int, device: int) -> StartError:
    return StartError(
        f"CUDA out of memory. Tried to allocate {format_gib(wanted)} GiB. GPU {device} has a total "
        f"capacity of "
        f"{format_gib(total)} GiB of which {format_gib(free)} GiB is free. See documentation for Memory "
        f"Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
        where="engine",
        kind="torch.OutOfMemoryError",
        function="load_model",
    )


def refuse_missing_weights(path: str) -> StartError:
    return StartError(
        f"Cannot find any model weights with `{path}`",
        where="engine",
        kind="RuntimeError",
        function="_prepare_weights",
    )
