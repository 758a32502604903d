import pytest

from deployments.planning.log_lines import parse_line

LAYOUTS = [
    ("INFO 06-15 13:57:57 [core.py:517] msg", (None, None, "INFO", "core.py:517", "msg")),
    ("INFO 06-15 13:57:57 config.py:517] msg", (None, None, "INFO", "config.py:517", "msg")),
    (
        "(VllmWorker rank=0 pid=77) INFO 06-15 13:57:57 [core.py:517] msg",
        ("VllmWorker", 77, "INFO", "core.py:517", "msg"),
    ),
    (
        "(APIServer pid=4069) INFO 12-01 01:12:00 [model.py:619] a: b",
        ("APIServer", 4069, "INFO", "model.py:619", "a: b"),
    ),
    (
        "(APIServer pid=1) (EngineCore_DP0 pid=2) WARNING 12-01 01:12:00 [a.py:1] m",
        ("EngineCore_DP0", 2, "WARNING", "a.py:1", "m"),
    ),
    (
        "(Worker_PP1_TP0 pid=3) ERROR 12-01 01:12:00 [v1/x.py:9] m",
        ("Worker_PP1_TP0", 3, "ERROR", "v1/x.py:9", "m"),
    ),
    (
        "(APIServer pid=4069) INFO:     Application startup complete.",
        ("APIServer", 4069, "INFO", None, "Application startup complete."),
    ),
    ("INFO:     Application startup complete.", (None, None, "INFO", None, "Application startup complete.")),
    ("(EngineCore pid=5) RuntimeError: no", ("EngineCore", 5, None, None, "RuntimeError: no")),
    (
        "OSError: [Errno 98] Address already in use",
        (None, None, None, None, "OSError: [Errno 98] Address already in use"),
    ),
    ("", (None, None, None, None, "")),
]


class TestParseLine:
    @pytest.mark.parametrize(("text", "wanted"), LAYOUTS)
    def test_reads_every_layout(self, text, wanted):
        line = parse_line(text)
        assert (line.process, line.pid, line.level, line.source, line.message) == wanted

    def test_strips_colour_and_line_ends(self):
        text = "\x1b[1;36m(APIServer pid=7)\x1b[0;0m INFO 12-01 01:12:00 [a.py:1] \x1b[31mred\x1b[0m\r\n"
        line = parse_line(text)
        assert (line.pid, line.message, line.progress) == (7, "red", False)

    def test_keeps_the_last_of_overwritten_progress(self):
        line = parse_line("(EngineCore pid=9) \rCapturing:   0%| 0/2\rCapturing: 100%| 2/2")
        assert (line.process, line.pid, line.message, line.progress) == (
            "EngineCore",
            9,
            "Capturing: 100%| 2/2",
            True,
        )

    def test_keeps_the_indentation_of_a_traceback(self):
        line = parse_line("(Worker pid=1) ERROR 12-01 01:26:10 [m.py:1063]     raise ValueError(")
        assert line.message == "    raise ValueError("

    def test_keeps_the_time_as_text(self):
        assert parse_line("INFO 12-01 01:12:00 [a.py:1] m").time == "12-01 01:12:00"

    @pytest.mark.parametrize(
        "text", ["(" * 5000, "(A pid=1) " * 3000, "\x1b[" * 9000, "x" * 10**6, "\r" * 9999, "\x00\ufffd"]
    )
    def test_survives_hostile_lines(self, text):
        assert len(parse_line(text).message) <= 64 * 1024
