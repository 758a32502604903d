"""Log lines at rest: whoever feeds them, in whatever pieces, each line is there once and in order."""

import random
import zlib

import pytest
from django.utils import timezone

from deployments.log_store import Misfit, append_log, new_part, read_lines
from deployments.models import Deployment, Instance, Launch, LogStream, Plan, Revision
from hosts.models import Credential, Host

pytestmark = pytest.mark.django_db
NOW = timezone.now


@pytest.fixture
def stream(db):
    from accounts.models import Environment

    environment = Environment.objects.create(name="E", slug="e")
    common = {"environment": environment}
    credential = Credential.objects.create(**common, name="k", kind="key", sealed=b"", created_at=NOW())
    host = Host.objects.create(**common, name="h", address="h", user="u", credential=credential, created_at=NOW())
    deployment = Deployment.objects.create(**common, name="d", created_at=NOW())
    revision = Revision.objects.create(
        deployment=deployment, number=1, spec=b"", digest="", author="a", created_at=NOW()
    )
    plan = Plan.objects.create(
        **common, deployment=deployment, revision=revision, host=host, kind="start", intent=b"", digest="",
        preconditions=[], display={}, author="a", created_at=NOW(), expires_at=NOW(),
    )  # fmt: skip
    instance = Instance.objects.create(deployment=deployment, slot=0, name="d-0")
    launch = Launch.objects.create(
        **common, deployment=deployment, instance=instance, revision=revision, plan=plan, host=host,
        address="127.0.0.1", port=1, served_name="m", argv=[], created_at=NOW(),
    )  # fmt: skip
    return LogStream.objects.create(launch=launch)


def feed(stream, content: bytes, begin: int, end: int) -> int:
    return append_log(
        launch_id=stream.launch_id, offset=begin, next_offset=end, text=content[begin:end].decode(), now=NOW()
    )


def stored(stream) -> list[str]:
    stream.refresh_from_db()
    return [line for _, line in read_lines(stream, first=1, limit=100_000)]


class TestAppendLog:
    def test_adds_nothing_that_is_there_already(self, stream):
        content = b"one\ntwo\n"
        assert feed(stream, content, 0, 8) == 2
        assert feed(stream, content, 0, 8) == 0
        assert stored(stream) == ["one", "two"]

    def test_takes_only_the_new_part_of_an_overlapping_piece(self, stream):
        content = "eins\nzwei ü\ndrei\n".encode()
        feed(stream, content, 0, 5)
        feed(stream, content, 0, len(content))
        assert stored(stream) == ["eins", "zwei ü", "drei"]

    def test_refuses_a_gap_and_says_where_to_read_again(self, stream):
        with pytest.raises(Misfit) as misfit:
            feed(stream, b"one\ntwo\n", 4, 8)
        assert misfit.value.wanted == 0

    def test_refuses_an_overlap_whose_place_is_uncertain(self):
        with pytest.raises(Misfit):
            new_part("a\ufffdb\n", offset=0, next_offset=4, stored=2)

    def test_keeps_every_line_once_whatever_the_pieces_of_two_readers(self, stream):
        chance = random.Random(7)
        lines = [f"line {number} {'x' * chance.randrange(80)}" for number in range(400)]
        content = "".join(f"{line}\n" for line in lines).encode()
        ends = [index + 1 for index, byte in enumerate(content) if byte == 10]
        readers = [0, 0]
        while min(readers) < len(content):
            who = chance.randrange(2)
            ahead = [end for end in ends if end > readers[who]]
            if ahead:
                end = ahead[min(chance.randrange(30), len(ahead) - 1)]
                feed(stream, content, readers[who], end)
                readers[who] = end
        assert stored(stream) == lines
        stream.refresh_from_db()
        assert stream.next_offset == len(content)

    def test_stops_keeping_lines_at_the_cap_and_says_so(self, stream, settings):
        settings.LOG_BYTES_PER_LAUNCH = 10
        content = b"12345\n67890\nabcde\n"
        feed(stream, content, 0, 6)
        feed(stream, content, 6, 12)
        feed(stream, content, 12, 18)
        stream.refresh_from_db()
        assert stream.capped
        assert stream.next_offset == 18
        assert stored(stream) == ["12345", "67890"]


class TestReadLines:
    def test_gives_a_window_by_number(self, stream):
        content = "".join(f"{n}\n" for n in range(1, 101)).encode()
        ends = [index + 1 for index, byte in enumerate(content) if byte == 10]
        for begin, end in zip([0, *ends[9::10]], ends[9::10], strict=False):
            feed(stream, content, begin, end)
        stream.refresh_from_db()
        assert list(read_lines(stream, first=15, limit=12)) == [(n, str(n)) for n in range(15, 27)]

    def test_packs_many_lines_in_one_row(self, stream):
        feed(stream, b"a\nb\nc\n", 0, 6)
        chunk = stream.chunks.get()
        assert zlib.decompress(bytes(chunk.text)) == b"a\nb\nc"
