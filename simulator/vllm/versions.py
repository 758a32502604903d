"""Which texts and habits of vLLM belong to which version. Pure."""

from __future__ import annotations


def parse_version(text: str) -> tuple[int, ...]:
    """Leading numbers of a version: "0.32.0+cpu" gives (0, 32, 0)."""
    numbers = []
    for part in text.split("+", maxsplit=1)[0].split("."):
        digits = "".join(character for character in part if character.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def is_at_least(version: str, wanted: str) -> bool:
    return parse_version(version) >= parse_version(wanted)


def choose_template(version: str, *, has_gpu: bool) -> str:
    """Choose the log template: 0.32 is recorded on a CPU, 0.25 on a GPU only; the nearest serves the rest."""
    if is_at_least(version, "0.32"):
        return "gpu-0.32" if has_gpu else "cpu-0.32"
    return "gpu-0.25" if has_gpu else "cpu-0.32"


def prefixes_everything(version: str) -> bool:
    """Tell whether uvicorn, tqdm and tracebacks carry the prefix: through 0.31; later only log records do."""
    return not is_at_least(version, "0.32")
