#!/bin/sh
# An entry per process: web, worker, beat, watcher, migrate; anything else is a command of manage.py.
set -eu
case "${1:-}" in
  web) exec gunicorn fleetadmin.asgi:application -k asgi -w "${WEB_WORKERS:-2}" -b 0.0.0.0:8000 \
         --graceful-timeout 5 --no-control-socket ;;
  worker) exec celery -A fleetadmin worker -P threads -c 16 -l INFO -Q fleetadmin --without-mingle --without-gossip ;;
  beat) exec celery -A fleetadmin beat -l WARNING -s "$FLEETADMIN_VAR/beat-schedule" ;;
  watcher) exec python manage.py watch ;;
  migrate)
    python manage.py migrate --noinput
    exec python manage.py shell -c "from accounts.services import ensure_shipped_roles; ensure_shipped_roles()" ;;
  *) exec python manage.py "$@" ;;
esac
