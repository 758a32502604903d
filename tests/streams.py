"""Answers that come in pieces, read to the end."""

from asgiref.sync import async_to_sync


def body_of(answer) -> bytes:
    """What the answer says, whether it was made whole or comes in pieces."""
    if not answer.streaming:
        return answer.content
    if not answer.is_async:
        return b"".join(answer.streaming_content)

    async def collect() -> bytes:
        return b"".join([piece async for piece in answer.streaming_content])

    return async_to_sync(collect)()
