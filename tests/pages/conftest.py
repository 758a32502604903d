from pathlib import Path

import pytest
from django.conf import settings


@pytest.fixture(scope="session", autouse=True)
def _static_root():
    """WhiteNoise warns where collectstatic never ran, and warnings are errors here."""
    Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)
