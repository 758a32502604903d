from django.core.paginator import Paginator
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from accounts.access import requires_somewhere
from audit.access import entries_for
from audit.canonical import clean_text
from audit.pages import entry_page

PAGE_SIZE = 50
may_read = requires_somewhere("audit.view_entry")


@require_safe
def entry_list(request):
    may_read(request.user)
    entries = entries_for(request.user)
    action, word = (clean_text(request.GET.get(name, ""))[:80] for name in ("action", "q"))
    if action:
        entries = entries.filter(action=action)
    if word:
        entries = entries.filter(object_label__icontains=word)
    page = Paginator(entries.defer("body"), PAGE_SIZE).get_page(request.GET.get("page"))
    return render(request, "audit/list.html", {"page": page, "q": word, "action": action})


@require_safe
def entry_detail(request, sequence: int):
    may_read(request.user)
    entry = get_object_or_404(entries_for(request.user), sequence=sequence)
    return render(request, "audit/detail.html", entry_page(entry, request.user))
