"""HTTP and websockets in one application; sockets of other origins are refused before anything is asked."""

import os

import django
from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "fleetadmin.settings.local")
django.setup()
http = get_asgi_application()

from fleetadmin.routing import socket_routes  # noqa: E402  (needs the app registry)

application = ProtocolTypeRouter(
    {
        "http": http,
        "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(socket_routes))),
    }
)
