"""One machine, embedded defaults: what `python manage.py up` runs. Listens on 127.0.0.1 alone."""

import json

import dj_database_url

from fleetadmin.settings import env
from fleetadmin.settings.base import *  # noqa: F403
from fleetadmin.settings.base import SQLITE_OPTIONS, VAR_DIR

DEBUG = False
# `up` leaves here what other commands on this machine need to join it. The vault's private key is not among it.
JOIN_FILE = VAR_DIR / "run" / "join.json"
JOIN = json.loads(JOIN_FILE.read_text(encoding="utf-8")) if JOIN_FILE.exists() else {}
SECRET_KEY = env.text("FLEETADMIN_SECRET_KEY", JOIN.get("secret_key", "commands-before-the-first-start"))
VAULT_PUBLIC_KEY = env.text("FLEETADMIN_VAULT_PUBLIC_KEY", JOIN.get("vault_public", ""))
ALLOWED_HOSTS = env.words("FLEETADMIN_ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]")
CSRF_TRUSTED_ORIGINS = env.words("FLEETADMIN_TRUSTED_ORIGINS", "")

# Files are served as they lie; nobody has to collect them on one machine.
WHITENOISE_USE_FINDERS = True

DATABASES = {"default": dj_database_url.parse(env.text("DATABASE_URL", f"sqlite:///{VAR_DIR}/fleetadmin.sqlite3"))}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = SQLITE_OPTIONS

REDIS_URL = env.text("REDIS_URL", JOIN.get("redis_url", "redis://127.0.0.1:6379/0"))
CELERY_BROKER_URL = REDIS_URL
CHANNEL_LAYERS = {
    "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [REDIS_URL]}}
}
