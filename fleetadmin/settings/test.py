"""Tests: eager tasks, an in-memory layer, harsher than production."""

import os

import dj_database_url

from fleetadmin.settings import env
from fleetadmin.settings.base import *  # noqa: F403
from fleetadmin.settings.base import SQLITE_OPTIONS, STATIC_ROOT, VAR_DIR

DEBUG = False
SECRET_KEY = "tests-only"  # noqa: S105
ALLOWED_HOSTS = ["testserver", "127.0.0.1", "localhost"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

STATIC_ROOT.mkdir(parents=True, exist_ok=True)
DATABASES = {"default": dj_database_url.parse(env.text("TEST_DATABASE_URL", "sqlite://:memory:"))}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = SQLITE_OPTIONS
    # A file, since consumers, tasks and the live server use threads with their own connections;
    # one per process, since a second run beside this one would empty its tables.
    DATABASES["default"]["TEST"] = {"NAME": str(VAR_DIR / f"test-{os.getpid()}.sqlite3")}

CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
CELERY_TASK_ALWAYS_EAGER = True
CELERY_TASK_EAGER_PROPAGATES = True
CELERY_BROKER_URL = "memory://"
# A pair for tests alone.
VAULT_PUBLIC_KEY = "9pSEJCRgah0+1KQUZxBMyAcjORXrOHRDhhI5u338vhA="
VAULT_PRIVATE_KEY = "mk6WLda8DV9nqTNV3gXyu5wQmbZYGNw8t4cSYEqAPp4="
