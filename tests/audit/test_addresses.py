"""Which address the trail keeps for somebody behind proxies."""

import pytest
from django.test import RequestFactory

from accounts.actors import client_address


class TestClientAddress:
    @pytest.mark.parametrize(
        ("proxies", "forwarded", "kept"),
        [
            (0, "198.51.100.7", "127.0.0.1"),
            (1, "198.51.100.7", "198.51.100.7"),
            (1, "forged, 198.51.100.7", "198.51.100.7"),
            (2, "forged, 198.51.100.7, 10.0.0.2", "198.51.100.7"),
            (2, "198.51.100.7", "127.0.0.1"),
            (1, "", "127.0.0.1"),
        ],
    )
    def test_goes_past_the_proxies_there_are_and_no_further(self, settings, proxies, forwarded, kept):
        settings.TRUSTED_PROXIES = proxies
        request = RequestFactory().get("/", HTTP_X_FORWARDED_FOR=forwarded)
        assert client_address(request) == kept
