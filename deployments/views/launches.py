from django.http import HttpRequest, JsonResponse, StreamingHttpResponse
from django.views.decorators.http import require_safe

from accounts.access import require
from accounts.pages import render_live
from deployments.access import launch_to_see, stream_to_read
from deployments.log_pages import log_page, whole_log
from deployments.models import LogStream
from deployments.pages.launches import instance_page

MOST_LINES = 2000


@require_safe
def instance(request, pk):
    launch = launch_to_see(request.user, pk)
    context = instance_page(launch, request.user, first=whole(request, "from"))
    return render_live(
        request, page="deployments/instance.html", fragment="deployments/_instance.html", context=context
    )


@require_safe
def instance_log(request, pk):
    """Return the whole stored log as plain text, in pieces: it may be 64 MiB."""
    launch = launch_to_see(request.user, pk)
    require(request.user, "deployments.read_log", launch)
    stream = stream_to_read(request.user, pk) or LogStream(lines=0)
    response = StreamingHttpResponse(whole_log(stream), content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{launch.instance.name}-{str(launch.pk)[:8]}.log"'
    return response


@require_safe
def instance_lines(request, pk):
    """Lines without a socket: `?from=` the first number, `limit=` how many."""
    launch = launch_to_see(request.user, pk)
    require(request.user, "deployments.read_log", launch)
    stream = stream_to_read(request.user, pk) or LogStream(lines=0)
    first = max(1, whole(request, "from") or 1)
    limit = min(MOST_LINES, whole(request, "limit") or MOST_LINES)
    if stream.pk is None:
        return JsonResponse({"lines": [], "next": first, "total": 0})
    return JsonResponse(log_page(stream, first=first, limit=limit))


def whole(request: HttpRequest, name: str) -> int | None:
    """Return a whole number of the query; None where it is none or absurd."""
    text = request.GET.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else None
