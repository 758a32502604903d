"""Production: refuses to start half configured (docs/install.md lists every variable)."""

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from fleetadmin.settings import env
from fleetadmin.settings.base import *  # noqa: F403
from fleetadmin.settings.base import SQLITE_OPTIONS, VAULT_PUBLIC_KEY

DEBUG = False
SECRET_KEY = env.text("FLEETADMIN_SECRET_KEY")
SHORTEST_SECRET_KEY = 50
if len(SECRET_KEY) < SHORTEST_SECRET_KEY:
    raise ImproperlyConfigured("FLEETADMIN_SECRET_KEY is shorter than 50 characters. Make a random one.")
if not VAULT_PUBLIC_KEY:
    raise ImproperlyConfigured(
        "FLEETADMIN_VAULT_PUBLIC_KEY is not set. Make a pair with `python manage.py vault_keys`; "
        "the private half goes to worker and watcher only."
    )
ALLOWED_HOSTS = env.words("FLEETADMIN_ALLOWED_HOSTS")
CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in ALLOWED_HOSTS]

DATABASES = {"default": dj_database_url.parse(env.text("DATABASE_URL"), conn_max_age=60)}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = SQLITE_OPTIONS

REDIS_URL = env.text("REDIS_URL")
CELERY_BROKER_URL = REDIS_URL
CHANNEL_LAYERS = {
    "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [REDIS_URL]}}
}
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "fleetadmin.storage.HashedStaticFiles"},
}
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_SSL_REDIRECT = env.boolean("FLEETADMIN_SSL_REDIRECT", default=True)
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
SECURE_HSTS_SECONDS = 31_536_000
