"""What the engine needs of a host: hosts.agent_session fulfils it, tests bring a scripted one."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol


class Stream(Protocol):
    """A verb that tells events while it runs."""

    result: Mapping[str, Any] | None

    def ticks(self, every: float) -> Iterator[Mapping[str, Any] | None]:
        """Events as they come, and None whenever `every` seconds passed without one; ends when the verb ends."""

    def cancel(self) -> None: ...


class Session(Protocol):
    """A live agent session. Errors: AgentRefused (the host said no), SshError (the wire)."""

    @property
    def machine_id(self) -> str: ...

    @property
    def boot_id(self) -> str: ...

    def request(
        self, verb: str, args: Mapping[str, Any], *, fence: Mapping[str, Any] | None = None, timeout: float
    ) -> dict[str, Any]: ...

    def stream(self, verb: str, args: Mapping[str, Any], *, fence: Mapping[str, Any] | None = None) -> Stream: ...
