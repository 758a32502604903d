"""What every installation shares. Chosen by name: local, production or test; never by trying."""

from pathlib import Path

from csp.constants import NONE, SELF
from django.utils.translation import gettext_lazy as _

from fleetadmin.settings import env

BASE_DIR = Path(__file__).resolve().parent.parent.parent
VAR_DIR = Path(env.text("FLEETADMIN_VAR", str(BASE_DIR / "var")))
VENDOR_DIR = VAR_DIR / "vendor"

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "csp",
    "django_htmx",
    "fleetadmin",
    "accounts",
    "audit",
    "hosts",
    "deployments",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "fleetadmin.urls"
ASGI_APPLICATION = "fleetadmin.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": False,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "accounts.pages.navigation",
            ],
        },
    }
]

AUTHENTICATION_BACKENDS = ["accounts.backends.RoleBackend"]
LOGIN_URL = "accounts:sign-in"
LOGIN_REDIRECT_URL = "fleet"
LOGOUT_REDIRECT_URL = "accounts:sign-in"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English"))]
LOCALE_PATHS = [BASE_DIR / "locale"]
# Django's default zone would leak into the log times of child processes.
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static", *([VENDOR_DIR] if VENDOR_DIR.is_dir() else [])]
STATIC_ROOT = VAR_DIR / "static"

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "object-src": [NONE],
        "base-uri": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SECURE_REFERRER_POLICY = "same-origin"

# Redis carries nudges and announcements only: the database is the truth for both.
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_DEFAULT_QUEUE = "fleetadmin"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 6 * 3600}
CELERY_TIMEZONE = "UTC"

SQLITE_OPTIONS = {
    # Measured with four writers: without IMMEDIATE, WAL alone loses half of the transactions to "database is locked".
    "timeout": 20,
    "transaction_mode": "IMMEDIATE",
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=20000;",
}

# How many proxies stand before the web process; 0: addresses are taken from the connection itself.
TRUSTED_PROXIES = env.integer("FLEETADMIN_TRUSTED_PROXIES", 0)
# The role of whoever runs commands on this machine: they act as local:<user> and are audited as such.
LOCAL_ROLE = env.text("FLEETADMIN_LOCAL_ROLE", "administrator")

RUN_LEASE_SECONDS = env.integer("FLEETADMIN_RUN_LEASE_SECONDS", 60)
WATCH_INTERVAL_SECONDS = env.integer("FLEETADMIN_WATCH_INTERVAL_SECONDS", 5)
LOG_BYTES_PER_LAUNCH = env.integer("FLEETADMIN_LOG_BYTES_PER_LAUNCH", 64 * 1024 * 1024)
SSH_CONNECT_TIMEOUT_SECONDS = env.integer("FLEETADMIN_SSH_CONNECT_TIMEOUT_SECONDS", 10)
# Web seals credentials with the public key; worker and watcher alone are given the private one.
VAULT_PUBLIC_KEY = env.text("FLEETADMIN_VAULT_PUBLIC_KEY", "")
VAULT_PRIVATE_KEY = env.text("FLEETADMIN_VAULT_PRIVATE_KEY", "")

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name} {message}", "style": "{"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": env.text("FLEETADMIN_LOG_LEVEL", "INFO")},
    "loggers": {"paramiko": {"level": "WARNING"}, "asyncssh": {"level": "WARNING"}},
}
