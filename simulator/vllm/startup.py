"""The start of an instance: API server first, then the engine (engine_start), then the port.

Order and texts as vLLM 0.25.1 and 0.32.0 have them; durations from phase_times.json and timings.json.
"""

from __future__ import annotations

import errno
import secrets
import signal
import socket
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.vllm import checks
from simulator.vllm.api import Api
from simulator.vllm.arguments import ArgumentError, parse_serve
from simulator.vllm.checks import StartError
from simulator.vllm.engine_start import EngineStart
from simulator.vllm.http_server import HttpServer
from simulator.vllm.model_files import Model, read_model
from simulator.vllm.signals import Stage
from simulator.vllm.versions import is_at_least

if TYPE_CHECKING:
    from simulator.vllm.instance import Instance

EVERYWHERE = frozenset({"", "0.0.0.0", "::", "localhost", "127.0.0.1", "::1"})  # noqa: S104 - names of an option


class Startup:
    """Runs once per instance; ends in a served port, or in the exit that the failure deserves."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.log = instance.log

    async def run(self) -> None:
        instance = self.instance
        try:
            await self._start()
        except ArgumentError as error:
            self.log.write(str(error))
            instance.end(exit_code=2)
        except StartError as failure:
            self._write_failure(failure)
            instance.end(exit_code=1)
        except Exception:  # noqa: BLE001 - the one broad place: a fault of the stand-in must not look like a hang
            self.log.write(f"simulator fault:\n{traceback.format_exc()}")
            instance.end(exit_code=1)

    async def _start(self) -> None:
        instance = self.instance
        await instance.live("imports")
        instance.arguments = parse_serve(instance.words, version=instance.version)
        if "VLLM_API_KEY" in instance.env and not instance.arguments.api_keys:
            instance.arguments.api_keys = [instance.env["VLLM_API_KEY"]]
        instance.warmth = instance.around.caches.find_warmth(instance.arguments.compiled_for)
        if instance.fault == "wrong_name":
            instance.arguments.served = ["another-model"]
        self._set_values()
        self.log.write_section("arguments")
        instance.socket = self._bind()
        await instance.live("arguments")
        model = self._configure()
        instance.stage = Stage.STARTING
        await EngineStart(instance).run(model)
        await self._listen()

    def _set_values(self) -> None:
        instance, arguments = self.instance, self.instance.arguments
        given = {name: "***" if name == "api_key" else value for name, value in arguments.given.items()}
        binary = Path(instance.python).parent
        self.log.values |= {
            "version": instance.version,
            "model": arguments.model,
            "given": repr(given),
            "tp": str(arguments.tensor_parallel),
            "pp": str(arguments.pipeline_parallel),
            "world": str(arguments.world_size),
            "served": arguments.served_names[0],
            "kv_dtype": arguments.kv_cache_dtype,
            "load_format": arguments.load_format,
            "host": arguments.host or "0.0.0.0",  # noqa: S104 - what vLLM prints
            "port": str(arguments.port),
            "api_pid": str(instance.tree.api.pid),
            "site": str(binary.parent / "lib/python3.11/site-packages"),
            "bin": str(binary),
            "device": "GPU" if instance.machine.gpus else "CPU",
            "rendezvous": secrets.token_hex(16) if is_at_least(instance.version, "0.28") else "51173",
            "cache_key": secrets.token_hex(5),
            "aot_key": secrets.token_hex(32),
        }

    def _bind(self) -> socket.socket:
        """Bound, not listening, until the engine is ready: invisible in `ss`, taken for bind()."""
        instance, arguments = self.instance, self.instance.arguments
        host = arguments.host or ""
        address = instance.around.address if host in EVERYWHERE else host
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        try:
            if instance.fault == "port_taken":
                raise OSError(errno.EADDRINUSE, "Address already in use")  # noqa: TRY301 - as bind()
            if address != instance.around.address:
                raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")  # noqa: TRY301 - as bind()
            sock.bind((address, arguments.port))
        except OSError as error:
            sock.close()
            raise StartError(
                f"OSError: [Errno {error.errno}] {error.strerror}",
                where="api",
                function="create_server_socket",
            ) from None
        return sock

    def _configure(self) -> Model:
        instance, arguments = self.instance, self.instance.arguments
        model = read_model(arguments.model, load_format=arguments.load_format)
        self.log.values |= {"architecture": model.shape.architecture, "dtype": model.dtype}
        self.log.write_section("architecture")
        if failure := checks.check_length(model.shape, arguments):
            raise failure
        instance.max_model_len = arguments.max_model_len or model.shape.max_positions
        self.log.values |= {
            "max_len": str(instance.max_model_len),
            "max_len_commas": f"{instance.max_model_len:,}",
        }
        self.log.write_section("config")
        instance.gpus = instance.machine.gpus_of(instance.env.get("CUDA_VISIBLE_DEVICES"))
        count = len(instance.gpus) if instance.machine.gpus else None
        if failure := checks.check_parallel(model.shape, arguments, gpus=count):
            raise failure
        if instance.machine.gpus and not instance.gpus:
            raise StartError("RuntimeError: No CUDA GPUs are available", where="api", function="_lazy_init")
        instance.gpus = instance.gpus[: arguments.world_size]
        return model

    async def _listen(self) -> None:
        instance = self.instance
        await instance.write_over(self.log.pieces("http"), "http")
        if instance.tree.api.gone or instance.socket is None:
            return  # EngineCore became ready as an orphan: nobody serves it
        server = HttpServer(handle=Api(instance).handle, log=self._access)
        try:
            await server.listen(instance.socket)
        except OSError as error:
            raise StartError(
                f"OSError: [Errno {error.errno}] {error.strerror}", where="api", function="startup"
            ) from None
        instance.http = server
        self.log.write_section("ready")
        instance.stage = Stage.SERVING
        instance.started = True
        if instance.fault == "killed_parent":
            instance.machine.signal(instance.tree.api.pid, instance.tree.api.start_time, signal.SIGKILL)

    def _access(self, client: str, line: str, status: str) -> None:
        text = f'INFO:     {client} - "{line}" {status}\n'
        self.log.write(text if is_at_least(self.instance.version, "0.32") else f"(APIServer) {text}")

    # -- failure

    def _write_failure(self, failure: StartError) -> None:
        values = {
            "error": failure.text,
            "error_type": failure.kind,
            "failed_in": failure.function,
            "failed_file": "engine/arg_utils.py",
            "failed_line": "914",
            "failed_code": "raise error",
        }
        if failure.where == "api":
            self.log.write_section("api_failed", **values)
            return
        if self.instance.tree.workers and failure.where == "engine":
            source = "multiproc_executor.py:870"
            for line in (
                "WorkerProc failed to start.",
                "Traceback (most recent call last):",
                f"{failure.kind}: {failure.text}",
            ):
                self.log.write(f"(Rank0) ERROR [{source}] {line}\n")
            values |= {
                "error_type": "Exception",
                "error": "WorkerProc initialization failed due to an exception in a background process. "
                "See stack trace for root cause.",
            }
        self.log.write_section("engine_failed", **values)
        self.log.write_section("failed_start", **values)
