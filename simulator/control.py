"""Control of a running simulator from other processes: JSON over HTTP on loopback, with a token kept in DIR.

    POST /hosts/NAME/kill       {"title": "EngineCore", "signal": 9} -> {"pids": [...]}
    POST /hosts/NAME/reboot     {}                              -> {}
    POST /hosts/NAME/fail-next  {"fault": "slow_load"}          -> {}
    POST /hosts/NAME/occupy     {"gpu": 0, "bytes": 1000000000} -> {"pid": n}
    POST /hosts/NAME/disconnect {}                              -> {}
    POST /hosts/NAME/reset      {"count": 3}                    -> {}
    POST /hosts/NAME/silent     {"seconds": 30}                 -> {}
    POST /hosts/NAME/fill-disk  {}                              -> {}
    GET  /hosts                                                 -> enrolment facts, as at the start
    GET  /hosts/NAME                                            -> processes, devices, starts so far
Every request carries `Authorization: Bearer TOKEN`. The address and the token are in DIR/control.json (0600).
"""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import socket
from typing import TYPE_CHECKING, Any

from simulator.vllm.http_server import Answer, HttpServer, Request, answer_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulator.fleet import Fleet, SimulatedHost


class ControlServer:
    """Lives in the fleet's event loop."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.token = secrets.token_urlsafe(24)
        self._server = HttpServer(handle=self._handle, log=lambda _client, _line, _status: None)

    async def start(self) -> int:
        """Listen on a free port of 127.0.0.1 and write DIR/control.json. The port."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
        await self._server.listen(sock)
        path = self._fleet.directory / "control.json"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps({"address": "127.0.0.1", "port": port, "token": self.token}), "utf-8")
        return port

    async def stop(self) -> None:
        self._server.abort()
        (self._fleet.directory / "control.json").unlink(missing_ok=True)
        await asyncio.sleep(0)

    async def _handle(self, request: Request) -> Answer:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return answer_json({"code": "UNAUTHORIZED", "message": "The token of control.json is missing."}, 401)
        parts = [part for part in request.path.split("/") if part]
        if parts == ["hosts"]:
            return answer_json(self._fleet.describe())
        host = next((each for each in self._fleet if parts[:1] == ["hosts"] and each.name == parts[1]), None)
        if host is None:
            return answer_json({"code": "HOST_UNKNOWN", "message": "There is no such host."}, 404)
        if len(parts) == 2:
            return answer_json(_describe_state(host))
        try:
            body = json.loads(request.body or b"{}")
            return answer_json(_act(host, parts[2], body))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            return answer_json({"code": "BAD_REQUEST", "message": str(error)}, 400)


PLAIN: dict[str, Callable[[SimulatedHost], None]] = {
    "reboot": lambda host: host.reboot(),
    "disconnect": lambda host: host.disconnect(),
    "fill-disk": lambda host: host.fill_disk(),
}


def _act(host: SimulatedHost, action: str, body: dict[str, Any]) -> dict[str, Any]:
    if action == "kill":
        return {"pids": host.kill(str(body["title"]), int(body.get("signal", signal.SIGKILL)))}
    if action == "occupy":
        return {"pid": host.occupy(int(body["gpu"]), int(body["bytes"]))}
    if action == "fail-next":
        host.fail_next(str(body["fault"]))
    elif action == "reset":
        host.reset(int(body["count"]))
    elif action == "silent":
        host.go_silent(float(body["seconds"]))
    elif action in PLAIN:
        PLAIN[action](host)
    else:
        raise ValueError(f"Unknown action {action!r}")
    return {}


def _describe_state(host: SimulatedHost) -> dict[str, Any]:
    return {
        "boot_id": host.machine.boot_id,
        "starts": len(host.instances),
        "processes": [
            {"pid": each.pid, "ppid": each.ppid, "sid": each.sid, "state": each.state, "title": each.title}
            for each in host.machine
        ],
        "devices": [
            {"uuid": use.uuid, "used": use.used, "total": use.total, "processes": list(use.processes)}
            for use in host.system.device_use()
        ],
    }
