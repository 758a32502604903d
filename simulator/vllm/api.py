"""vLLM's HTTP surface: health, models, metrics, completions with streaming, and errors in the real shapes.

Bodies as recorded from vLLM 0.32.0 (CPU build); 0.25.1 answers alike for these routes.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from simulator.vllm.generation import (
    EngineDeadError,
    Generation,
    count_tokens,
    generate_stream,
    generate_whole,
)
from simulator.vllm.http_server import Answer, Request, answer_json

if TYPE_CHECKING:
    from simulator.vllm.instance import Instance

GET_ROUTES = frozenset({"/health", "/ping", "/version", "/v1/models", "/metrics", "/load"})
POST_ROUTES = frozenset({"/v1/completions", "/v1/chat/completions", "/tokenize", "/ping"})
UNCOUNTED = frozenset({"/metrics", "/health", "/load", "/ping", "/version"})
CHARACTERS_PER_TOKEN = 12  # vLLM's upper bound for a prompt that is refused before it is tokenised


class ApiError(Exception):
    """An answer in vLLM's `error` shape."""

    def __init__(self, status: int, message: str, *, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.answer = answer_json({"error": {"message": message, "type": kind, "param": param, "code": status}}, status)


class Api:
    """Routes of one instance."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.created = int(time.time())

    async def handle(self, request: Request) -> Answer:
        path = request.path.split("?")[0]
        await self._wait_while_stopped()
        answer = await self._dispatch(path, request)
        if path not in UNCOUNTED:
            self.instance.metrics.count_http(handler=path, method=request.method, status=answer.status)
        return answer

    async def _wait_while_stopped(self) -> None:
        """Hold the answer while the API server is stopped: the kernel accepts, nobody answers."""
        while self.instance.tree.api.stopped:
            await self.instance.pause()

    async def _dispatch(self, path: str, request: Request) -> Answer:
        known = GET_ROUTES | POST_ROUTES
        if path.startswith("/v1") and not self._is_authorized(request):
            return answer_json({"error": "Unauthorized"}, 401)
        if path not in known:
            return answer_json({"detail": "Not Found"}, 404)
        wanted = POST_ROUTES if request.method == "POST" else GET_ROUTES
        if path not in wanted or request.method not in ("GET", "HEAD", "POST"):
            return answer_json({"detail": "Method Not Allowed"}, 405)
        try:
            if request.method == "POST" and path != "/ping":
                return await self._post(path, request)
            return self._get(path)
        except ApiError as error:
            return error.answer
        except EngineDeadError:
            return ApiError(
                500,
                "EngineCore encountered an issue. See stack trace (above) for the root cause.",
                kind="InternalServerError",
            ).answer

    def _is_authorized(self, request: Request) -> bool:
        keys = self.instance.arguments.api_keys
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return not keys or (scheme.lower() == "bearer" and token in keys)

    def _get(self, path: str) -> Answer:
        instance = self.instance
        name = instance.arguments.served_names[0]
        if path in ("/health", "/ping"):
            return Answer(status=503 if instance.engine_dead.is_set() else 200, content_type=None)
        if path == "/version":
            return answer_json({"version": instance.version})
        if path == "/load":
            tracked = instance.metrics.running if instance.arguments.load_tracking else 0
            return answer_json({"server_load": tracked})
        if path == "/metrics":
            text = instance.metrics.render(model=name, version=instance.version)
            return Answer(body=text.encode(), content_type="text/plain; version=0.0.4; charset=utf-8")
        return answer_json({"object": "list", "data": [self._model(each) for each in instance.arguments.served_names]})

    def _model(self, name: str) -> dict[str, Any]:
        permission = {
            "id": self.instance.make_id("modelperm"),
            "object": "model_permission",
            "created": self.created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "vllm",
            "root": self.instance.arguments.model,
            "parent": None,
            "max_model_len": self.instance.max_model_len,
            "permission": [permission],
        }

    async def _post(self, path: str, request: Request) -> Answer:
        body = self._read_body(request)
        chat = path == "/v1/chat/completions"
        if path == "/tokenize":
            return self._tokenize(body)
        generation = self._read_generation(body, chat=chat)
        if body.get("stream"):
            if self.instance.engine_dead.is_set():
                raise EngineDeadError
            stream = generate_stream(self.instance, generation)
            return Answer(stream=stream, content_type="text/event-stream; charset=utf-8")
        return answer_json(await generate_whole(self.instance, generation))

    def _read_body(self, request: Request) -> dict[str, Any]:
        try:
            body = json.loads(request.body.decode("utf-8"))
        except (ValueError, UnicodeDecodeError) as error:
            position = getattr(error, "pos", 0)
            text = (
                f"1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{position}', 'msg': 'JSON "
                f"decode error', "
                "'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting value'}}"
            )
            raise ApiError(400, text, kind="Bad Request", param=f"body.{position}") from None
        if not isinstance(body, dict):
            raise ApiError(
                400,
                "1 validation error:\n  {'type': 'dict_type', 'loc': 'body'}",
                kind="Bad Request",
                param="body",
            )
        return body

    def _check_model(self, body: dict[str, Any]) -> str:
        names = self.instance.arguments.served_names
        asked = body.get("model") or names[0]
        if asked not in names:
            text = f"The model `{asked}` does not exist. Valid aliases: {', '.join(names)}."
            raise ApiError(404, text, kind="NotFoundError", param="model")
        return str(asked)

    def _tokenize(self, body: dict[str, Any]) -> Answer:
        self._check_model(body)
        text = str(body.get("prompt") or "".join(str(each.get("content", "")) for each in body.get("messages", [])))
        count = count_tokens(text)
        return answer_json(
            {
                "count": count,
                "max_model_len": self.instance.max_model_len,
                "tokens": [(7919 * index + 13) % 50_000 for index in range(count)],
                "token_strs": None,
            }
        )

    def _read_generation(self, body: dict[str, Any], *, chat: bool) -> Generation:
        required = "messages" if chat else "prompt"
        if required not in body:
            items = len(body)
            text = (
                f"1 validation error:\n  {{'type': 'missing', 'loc': 'body.{required}', 'msg': 'Field "
                f"required', "
                f"'input': '<dict of {items} items>'}}"
            )
            raise ApiError(400, text, kind="Bad Request", param=f"body.{required}")
        model = self._check_model(body)
        prompt = "\n".join(str(each.get("content", "")) for each in body["messages"]) if chat else str(body["prompt"])
        limit = self.instance.max_model_len
        self._check_lengths(body, prompt, limit)
        tokens = count_tokens(prompt) + (9 if chat else 0)
        default = limit - tokens if chat else 16
        wanted = body.get("max_completion_tokens") or body.get("max_tokens") or default
        return Generation(
            chat=chat,
            model=model,
            prompt_tokens=tokens,
            max_tokens=max(1, min(int(wanted), limit - tokens, 4096)),
            ignore_eos=bool(body.get("ignore_eos")),
            include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
            seed=hash(prompt),
        )

    def _check_lengths(self, body: dict[str, Any], prompt: str, limit: int) -> None:
        wanted = body.get("max_completion_tokens") or body.get("max_tokens")
        if wanted is not None and int(wanted) > limit:
            text = (
                f"max_tokens={wanted} cannot be greater than max_model_len={limit}. Please request fewer "
                f"output tokens. "
                f"(parameter=max_tokens, value={wanted})"
            )
            raise ApiError(400, text, kind="BadRequestError", param="max_tokens")
        if len(prompt) > limit * CHARACTERS_PER_TOKEN:
            text = (
                f"This model's maximum context length is {limit} tokens. However, your prompt contains "
                f"{len(prompt)} characters "
                f"(more than {limit * CHARACTERS_PER_TOKEN} characters, which is the upper bound for "
                f"{limit} input tokens). "
                f"Please reduce the length of the input prompt. (parameter=input_text, value={len(prompt)})"
            )
            raise ApiError(400, text, kind="BadRequestError", param="input_text")
        tokens = count_tokens(prompt)
        if tokens + int(wanted or 1) > limit:
            text = (
                f"This model's maximum context length is {limit} tokens. However, you requested "
                f"{wanted or 1} output tokens and "
                f"your prompt contains {tokens} input tokens, for a total of {tokens + int(wanted or 1)} "
                f"tokens. Please reduce the "
                f"length of the input prompt or the number of requested output tokens. "
                f"(parameter=input_tokens, value={tokens})"
            )
            raise ApiError(400, text, kind="BadRequestError", param="input_tokens")
