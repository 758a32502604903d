"""The table of known causes: a code, the text that proves it, one sentence, and what to do.

Texts are those of vLLM 0.8 to 0.33 (read in its sources), CUDA, NCCL and huggingface_hub; the ones marked
"recorded" are in tests/planning/samples. Order counts only for a line that two patterns know. `{name}` is
replaced by the pattern's group of that name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    code: str
    pattern: re.Pattern[str]
    sentence: str
    next_step: str


def _rule(code: str, pattern: str, sentence: str, next_step: str) -> Rule:
    return Rule(code, re.compile(pattern), sentence, next_step)


# Said after the cause, or about another process's end: never a cause in itself.
GENERIC = re.compile(
    r"See root cause above|See stack trace|root cause|Engine core initialization failed"
    r"|WorkerProc initialization failed"
    r"|^(?:[\w.]*\.)?(?:EngineDeadError|EngineGenerateError|SystemExit|KeyboardInterrupt)\b|Executor failed"
    r"|cannot schedule new futures"
    r"|^pydantic_core\S*ValidationError: \d+ validation error|CancelledError"
)

_ARGUMENTS = (
    _rule(
        "FLAG_UNKNOWN",  # recorded
        r"error: unrecognized arguments: (?P<flags>.+)",
        "This vLLM does not know the argument {flags}.",
        "Remove it from the deployment's extra arguments, or choose a vLLM that has it.",
    ),
    _rule(
        "ARGUMENT_VALUE_INVALID",  # recorded
        r"error: argument (?P<flag>[-\w/,. ]+): (?P<why>.+)",
        "vLLM refuses the value of {flag}: {why}.",
        "Correct the value in the deployment and make a new plan.",
    ),
    _rule(
        "ARGUMENT_MISSING",
        r"error: the following arguments are required: (?P<flags>.+)",
        "vLLM asks for an argument that was not given: {flags}.",
        "Choose a vLLM version that this program knows; the plan page names them.",
    ),
)

_MODEL = (
    _rule(
        "MODEL_PATH_INVALID",  # recorded; a path that does not exist is taken for a name on a hub
        r"HFValidationError: Repo id must be .*?: '(?P<path>[^']*)'",
        "There is no model directory at {path} on the host.",
        "Refresh the host's facts and choose a model from the list, or put the model where the deployment says.",
    ),
    _rule(
        "MODEL_NOT_ON_HOST",  # recorded
        r"LocalEntryNotFoundError:|OfflineModeIsEnabled:|outgoing traffic has been disabled",
        "The model is not on the host, and instances are not allowed to download one.",
        "Copy the model to a directory below one of the host's model roots and name that directory.",
    ),
    _rule(
        "MODEL_CONFIG_INVALID",
        r"does not appear to have a file named config\.json|Unrecognized model in"
        r"|Invalid repository ID or local directory",
        "The model directory has no config.json that vLLM can use.",
        "Copy the model again, with its config.json and tokenizer files.",
    ),
    _rule(
        "MODEL_NEEDS_OWN_CODE",
        r"requires you to execute the configuration file|contains custom code which must be executed"
        r"|trust_remote_code=True",
        "The model brings code of its own, which vLLM runs only with --trust-remote-code.",
        "Read the model's code, then add --trust-remote-code; that needs the permission for code-loading arguments.",
    ),
    _rule(
        "ARCHITECTURE_UNSUPPORTED",  # recorded
        r"Model architectures \[(?P<names>[^\]]*)\] (?:are not supported|failed to be inspected)",
        "This vLLM does not support the model's architecture {names}.",
        "Choose a newer vLLM on the host, or another model.",
    ),
    _rule(
        "CONTEXT_TOO_LONG",  # recorded
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len "
        r"\((?:max_position_embeddings|\w+)=(?P<limit>\d+|None)",
        "The context of {asked} tokens is longer than the model's own limit of {limit}.",
        "Lower max_model_len to the model's limit or leave it empty.",
    ),
    _rule(
        "TP_DOES_NOT_DIVIDE_HEADS",  # recorded
        r"Total number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size"
        r" \((?P<tp>\d+)\)",
        "The model's {heads} attention heads cannot be split over tensor parallel {tp}.",
        "Choose a tensor parallel size that divides {heads}.",
    ),
    _rule(
        "PIPELINE_PARALLEL_UNSUPPORTED",
        r"Pipeline parallelism is not supported for this model",
        "This model cannot be split into pipeline stages by this vLLM.",
        "Set pipeline parallel to 1 and use tensor parallel instead.",
    ),
    _rule(
        "DTYPE_UNSUPPORTED",
        r"Bfloat16 is only supported on GPUs|torch\.bfloat16 is not supported|dtype .{1,40} is not supported",
        "The device does not support the number format that the model or the deployment asks for.",
        "Set dtype to float16.",
    ),
    _rule(
        "WEIGHTS_MISSING",  # recorded
        r"Cannot find any model weights with [`'](?P<path>[^`']*)[`']",
        "There are no weight files in {path}.",
        "Copy the model's .safetensors files to the host; use --load-format dummy only for tests.",
    ),
    _rule(
        "WEIGHTS_DAMAGED",  # recorded
        r"SafetensorError: (?P<why>.+)|PytorchStreamReader failed",
        "A weight file of the model is damaged or not complete: {why}.",
        "Copy the model's weight files again and compare their checksums.",
    ),
    _rule(
        "WEIGHTS_DO_NOT_FIT_MODEL",
        r"There is no module or parameter named|size mismatch for |Following weights were not initialized"
        r"|is not divisible by \d+",
        "The weight files do not match the model's config.json or the chosen parallel sizes.",
        "Check that config.json and weights come from the same model; with tensor parallel, try a smaller size.",
    ),
)

_MEMORY = (
    _rule(
        "KV_CACHE_TOO_BIG",  # recorded (CPU build)
        r"Available memory on node \d+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on kv cache allocation is"
        r" less than "
        r"requested memory for kv \((?P<asked>[\d.]+) GiB\)",
        "The KV cache of {asked} GiB does not fit: {free} of {total} GiB of memory are free.",
        "Lower kv_cache_memory_bytes below the free memory.",
    ),
    _rule(
        "MEMORY_NOT_FREE",
        r"Free memory on device(?: \S+)? \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than"
        r" desired "
        r"GPU memory utilization \((?P<share>[\d.]+), (?P<asked>[\d.]+) GiB\)",
        "The GPU had {free} of {total} GiB free at the start; the instance wanted {asked} GiB ({share}).",
        "Stop what holds the memory (the host page names it) or lower the instance's share.",
    ),
    _rule(
        "KV_CACHE_TOO_SMALL",  # recorded (H200, three starts 5 s apart)
        r"To serve at least one request with the models?'s max seq len"
        r"|the estimated maximum model length is (?P<longest>\d+)"
        r"|max seq len \(\d+\) is larger than the maximum number of tokens that can be stored in KV cache",
        "What was left for the KV cache does not hold one request of the asked context length.",
        "Lower max_model_len, raise the instance's share of the GPU, or start fewer instances at the same time.",
    ),
    _rule(
        "NO_KV_CACHE_MEMORY",
        r"No available memory for the cache blocks",
        "After the weights nothing was left for the KV cache.",
        "Raise the instance's share of the GPU, or start fewer instances on it.",
    ),
    _rule(
        "MEMORY_CHANGED_DURING_START",
        r"Error in memory profiling\. Initial free memory",
        "Another process gave memory back on the same GPU while vLLM was measuring it.",
        "Start it again when nothing else starts or stops on this GPU.",
    ),
    _rule(
        "CUDA_OUT_OF_MEMORY",
        r"(?:torch\.)?(?:cuda\.)?OutOfMemoryError|CUDA out of memory|CUDA error: out of memory"
        r"|cudaErrorMemoryAllocation",
        "The GPU ran out of memory.",
        "Lower the instance's share, max_num_seqs or max_model_len, or take other processes off this GPU.",
    ),
    _rule(
        "HOST_OUT_OF_MEMORY",
        r"^MemoryError\b|Cannot allocate memory|DefaultCPUAllocator: (?:can't|not enough)",
        "The host ran out of main memory.",
        "Start fewer instances side by side on this host, or lower the KV cache on a host without GPUs.",
    ),
    _rule(
        "SHARED_MEMORY_FULL",
        r"No space left on device.*(?:/dev/shm|psm_)|(?:/dev/shm|psm_).*No space left on device|Bus error",
        "The host's shared memory (/dev/shm) is too small or full.",
        "Make /dev/shm larger, or sweep what stopped instances left there.",
    ),
    _rule(
        "DISK_FULL",
        r"\[Errno 28\] No space left on device",
        "A disk of the host is full.",
        "Free space where the logs, the home directory and /tmp lie, then start again.",
    ),
)

_MACHINE = (
    _rule(
        "PORT_TAKEN",  # recorded
        r"\[Errno 98\].*(?:[Aa]ddress already in use)|error while attempting to bind on address",
        "The port was already taken by another process on the host.",
        "Make a new plan; it tries each port by binding it and takes a free one.",
    ),
    _rule(
        "RENDEZVOUS_PORT_TAKEN",  # DistNetworkError, before vLLM 0.28
        r"EADDRINUSE|The server socket has failed to listen on any local network address",
        "The internal port that this vLLM chose for its workers was taken by another start at the same moment.",
        "Start it again; one start at a time avoids it.",
    ),
    _rule(
        "NO_CUDA_DEVICE",
        r"No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device is detected"
        r"|invalid device ordinal"
        r"|CUDA_ERROR_NO_DEVICE",
        "vLLM does not see the GPU.",
        "Check nvidia-smi on the host; if it works there, refresh the facts and make a new plan.",
    ),
    _rule(
        "DEVICE_TYPE_UNKNOWN",
        r"Failed to infer device type|Device string must not be empty",
        "This vLLM build does not match the host: it finds no device it can use.",
        "On a host without GPUs install vLLM's CPU build; on a GPU host check the driver.",
    ),
    _rule(
        "TOO_FEW_DEVICES",
        r"World size \((?P<world>\d+)\) is larger than the number of available GPUs \((?P<gpus>\d+)\)",
        "The instance needs {world} GPUs and sees {gpus}.",
        "Give the deployment as many devices as tensor parallel times pipeline parallel.",
    ),
    _rule(
        "NUMA_NODES_TOO_FEW",
        r"Not enough allowed NUMA nodes to bind threads of (?P<workers>\d+) local CPUWorkers",
        "The CPU build cannot bind {workers} workers to this machine's NUMA nodes by itself.",
        "Set VLLM_CPU_OMP_THREADS_BIND in the deployment's variables, for example '0|1'.",
    ),
    _rule(
        "DRIVER_TOO_OLD",
        r"The NVIDIA driver on your system is too old|CUDA driver version is insufficient"
        r"|no kernel image is available",
        "The host's NVIDIA driver or GPU does not fit this vLLM's CUDA version.",
        "Update the driver, or choose a vLLM built for an older CUDA.",
    ),
    _rule(
        "CUDA_ERROR",
        r"(?:CUDA error: |CUDA failure:? ?|AcceleratorError:? ?(?!CUDA error: ))(?P<what>[^\n]{1,160})",  # recorded
        "The GPU reported an error: {what}.",
        "Look for Xid messages in the kernel's log; restart on another GPU meanwhile.",
    ),
    _rule(
        "NCCL_ERROR",
        r"NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|DistBackendError",
        "The GPUs of the instance could not talk to each other (NCCL).",
        "Set NCCL_DEBUG=INFO in the deployment's variables and start again; the log then names the link.",
    ),
    _rule(
        "START_TIMED_OUT",
        r"Timed out waiting for engine(?:s| core processes) to (?:start|send initial message)",
        "The engine did not come up within vLLM's own time limit.",
        "Read the last lines of the engine before this one; raise VLLM_ENGINE_READY_TIMEOUT_S if loading is"
        " merely slow.",
    ),
    _rule(
        "STEP_TIMED_OUT",
        r"RPC call to (?P<call>\w+) timed out",
        "A worker did not answer {call} in time: it hangs.",
        "Keep the evidence, then restart; see whether it returns with the same requests.",
    ),
    _rule(
        "COLLECTIVE_TIMED_OUT",
        r"Watchdog caught collective operation timeout",
        "A collective operation between the GPUs never finished.",
        "Check the links between the GPUs of this instance; try NCCL_P2P_DISABLE=1 to prove it.",
    ),
    _rule(
        "PACKAGE_MISSING",
        r"(?:ModuleNotFoundError|PackageNotFoundError): (?P<what>.+)",
        "The vLLM installation is not complete: {what}.",
        "Install vLLM again in this virtual environment, or choose another installation.",
    ),
    _rule(
        "IMPORT_FAILED",
        r"ImportError: (?P<what>.+)",
        "The vLLM installation cannot be loaded: {what}.",
        "Check the driver and the versions of torch and vLLM in this virtual environment.",
    ),
    _rule(
        "PERMISSION_DENIED",
        r"PermissionError: \[Errno 13\][^:]*: (?P<path>.+)",
        "The account on the host may not read or write {path}.",
        "Give the account access to it, or choose another path.",
    ),
    _rule(
        "WORKER_DIED",  # recorded
        r"Worker proc (?P<worker>\S+) died unexpectedly",
        "The worker process {worker} died without an error of its own: it was killed from outside, most"
        " often for memory.",
        "Look for 'Out of memory' in the kernel's log on the host, then start the instance again.",
    ),
    _rule(
        "ENGINE_DIED",
        r"Engine core proc(?:ess)? (?P<engine>\S+) died unexpectedly",
        "The engine process {engine} died without an error of its own: it was killed from outside.",
        "Look for 'Out of memory' in the kernel's log on the host, then start the instance again.",
    ),
    _rule(
        "ENGINE_ASSERTION",  # recorded (pipeline parallel on the CPU build)
        r"^AssertionError(?:: (?P<what>.+))?$",
        "vLLM stopped on a check of its own in the middle of work.",
        "Read the traceback above this line; the combination of model and options is probably not supported"
        " by this build.",
    ),
)

RULES: tuple[Rule, ...] = (*_ARGUMENTS, *_MODEL, *_MEMORY, *_MACHINE)

# A warning, not an error: the API server sees its engine gone and ends with exit code 0 (vLLM 0.32.0, CPU build, recorded).
NOTICE = _rule(
    "ENGINE_GONE",
    r"engine core exited unexpectedly",
    "EngineCore ended without a word, as when it is killed from outside; the API server then ended itself.",
    "Look in the kernel's log of the host for 'Out of memory', and in the audit trail for who sent a signal.",
)
